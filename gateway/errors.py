"""HTTP errors in OpenAI's format."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson
from starlette.responses import Response

from paceline import errors

# Retry-After of errors that do not carry a delay, in seconds.
RETRY_AFTER_S = 1
# HTTP field names by internal names (fields.py).
FieldNames = Mapping[str, str]
NO_RENAMES: FieldNames = MappingProxyType({})
# OpenAI's error codes by Paceline's reasons.
_CODES = {errors.CONTEXT_LENGTH_EXCEEDED: "context_length_exceeded"}


class HttpError(Exception):
    def __init__(
        self, status: int, message: str, kind: str, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def error_response(error: HttpError) -> JsonResponse:
    return JsonResponse(error.body, error.status, error.headers)


def bad_request(name: str | None, message: str, code: str | None = None) -> HttpError:
    return HttpError(400, message, "invalid_request_error", name, code)


def bad_value(field: str, value: Any, allowed: str) -> HttpError:
    return bad_request(field, f"{field} is {value!r:.80}; it must be {allowed}")


def unauthorized(message: str) -> HttpError:
    headers = {"www-authenticate": "Bearer"}
    return HttpError(401, message, "authentication_error", code="invalid_api_key", headers=headers)


def no_such_model(model: str, known: str) -> HttpError:
    message = f"model {model[:200]!r} is not available; this gateway serves {known!r}"
    return HttpError(404, message, "invalid_request_error", "model", "model_not_found")


def too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"the body is larger than {max_bytes} bytes", "invalid_request_error", code="body_too_large")


def too_many(message: str, retry_after_s: float | None = None) -> HttpError:
    wait_s = RETRY_AFTER_S if retry_after_s is None else max(1, math.ceil(retry_after_s))
    headers = {"retry-after": str(wait_s)}
    return HttpError(429, message, "rate_limit_error", code="rate_limit_exceeded", headers=headers)


def internal() -> HttpError:
    return HttpError(500, "internal error; see the gateway's log", "server_error")


def unavailable(message: str) -> HttpError:
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return HttpError(503, message, "service_unavailable_error", code="unavailable", headers=headers)


def from_paceline(error: errors.PacelineError, names: FieldNames = NO_RENAMES) -> HttpError:
    message = str(error)
    match error:
        case errors.InvalidArgument():
            named = renamed(error, names)
            return bad_request(named.field, str(named), _CODES.get(error.reason))
        case errors.OutOfRange():
            return bad_request(None, message)
        case errors.Unauthenticated():
            return unauthorized(message)
        case errors.PermissionDenied():
            return HttpError(403, message, "permission_error", code="permission_denied")
        case errors.ResourceExhausted():
            return too_many(message, error.retry_after_s)
        case errors.Unavailable():
            return unavailable(message)
        case _:
            return HttpError(500, message, "server_error")


def renamed(error: errors.InvalidArgument, names: FieldNames) -> errors.InvalidArgument:
    """Names the field as `names` does, or what it is a part of: `chat.messages[2].content` becomes `messages[2].content`."""
    head = error.field
    while head and head not in names:
        head = head[: max(head.rfind("."), head.rfind("["), 0)]
    return error.renamed(names[head] + error.field[len(head) :]) if head else error


def from_exception(error: BaseException, names: FieldNames = NO_RENAMES) -> HttpError:
    """Hides the details of unexpected exceptions."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, errors.PacelineError):
        return from_paceline(error, names)
    return internal()
