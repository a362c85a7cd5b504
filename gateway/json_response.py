"""Answers in JSON."""

from typing import Any

import orjson
from starlette.responses import Response

from gateway.errors import HttpError


class JsonResponse(Response):
    """As Starlette's, written faster."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def error_response(error: HttpError) -> JsonResponse:
    return JsonResponse(error.body, error.status, error.headers)
