"""Errors of requests, and how OpenAI's APIs spell them."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import orjson
from starlette.responses import Response

from paceline import errors

# Retry-After of errors that do not carry a delay, in seconds.
RETRY_AFTER_S = 1
REQUEST_ID_HEADER = "x-request-id"
# HTTP field names by internal names (fields.py).
FieldNames = Mapping[str, str]
NO_RENAMES: FieldNames = MappingProxyType({})
# OpenAI's types of errors by status.
_TYPES = {
    401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 500: "server_error",
    503: "service_unavailable_error",
}  # fmt: skip
# OpenAI's error codes by Paceline's reasons.
_CODES = {errors.CONTEXT_LENGTH_EXCEEDED: "context_length_exceeded"}


class HttpError(Exception):
    """Why a request fails, whatever the API; `Errors` spells it.

    field: as the client calls it.
    code: for programs.
    excess: what there is too much of, if that is known in numbers.
    """

    def __init__(
        self, status: int, message: str, field: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None, excess: errors.Excess | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field
        self.code = code
        self.headers = headers
        self.excess = excess


class Errors:
    """Spells the errors of a path as OpenAI does."""

    # The client's names of fields, by those in a coordinator's errors.
    field_names: ClassVar[FieldNames] = NO_RENAMES
    # Headers with the request's id, in every response.
    id_headers: ClassVar[tuple[str, ...]] = (REQUEST_ID_HEADER,)

    def status_of(self, http_error: HttpError) -> int:
        return http_error.status

    def error_body(self, http_error: HttpError, request_id: str) -> dict[str, Any]:
        kind = _TYPES.get(http_error.status, "invalid_request_error")
        return {
            "error": {"message": http_error.message, "type": kind, "param": http_error.field, "code": http_error.code}
        }

    def response(self, http_error: HttpError, request_id: str = "") -> "JsonResponse":
        return JsonResponse(self.error_body(http_error, request_id), self.status_of(http_error), http_error.headers)


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def bad_request(name: str | None, message: str, code: str | None = None) -> HttpError:
    return HttpError(400, message, name, code)


def bad_value(field: str, value: Any, allowed: str) -> HttpError:
    return bad_request(field, f"{field} is {errors.shown(value)}; it must be {allowed}")


def unauthorized(message: str) -> HttpError:
    headers = {"www-authenticate": "Bearer"}
    return HttpError(401, message, code="invalid_api_key", headers=headers)


def no_such_model(model: str, known: str) -> HttpError:
    message = f"model {model[:200]!r} is not available; this gateway serves {known!r}"
    return HttpError(404, message, "model", "model_not_found")


def too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")


def too_many(message: str, retry_after_s: float | None = None) -> HttpError:
    wait_s = RETRY_AFTER_S if retry_after_s is None else max(1, math.ceil(retry_after_s))
    headers = {"retry-after": str(wait_s)}
    return HttpError(429, message, code="rate_limit_exceeded", headers=headers)


def internal() -> HttpError:
    return HttpError(500, "internal error; see the gateway's log")


def unavailable(message: str) -> HttpError:
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return HttpError(503, message, code="unavailable", headers=headers)


def from_paceline(error: errors.PacelineError, names: FieldNames = NO_RENAMES) -> HttpError:
    message = str(error)
    match error:
        case errors.InvalidArgument():
            named, code, excess = renamed(error, names), _CODES.get(error.reason), error.excess
            if code == "context_length_exceeded" and excess is not None:
                # Agents know OpenAI's sentence by its text, and then compact the conversation.
                message = (
                    f"This model's maximum context length is {excess.limit} {excess.unit}. However, your {named.field} "
                    f"resulted in {excess.count} {excess.unit}. Please shorten it. ({code})"
                )
            else:
                message = str(named)
            return HttpError(400, message, named.field, code, excess=excess)
        case errors.OutOfRange():
            return bad_request(None, message)
        case errors.Unauthenticated():
            return unauthorized(message)
        case errors.PermissionDenied():
            return HttpError(403, message, code="permission_denied")
        case errors.ResourceExhausted():
            return too_many(message, error.retry_after_s)
        case errors.FatalRequest():
            # A status that clients do not retry.
            return HttpError(422, message, code="fatal_request")
        case errors.Unavailable():
            return unavailable(message)
        case _:
            return HttpError(500, message)


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
    if isinstance(error, RecursionError):
        return bad_request("body", "the body is nested too deeply")
    if isinstance(error, errors.PacelineError):
        return from_paceline(error, names)
    return internal()
