"""The span of an HTTP request that generates: the trace's first, or the child of what the client's `traceparent` says."""

from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.observability.spans import NO_SPAN, Span, Spans
from paceline.rpc.status import code_of

PATHS = ("/v1/chat/completions", "/v1/completions")
# Of the request that is served; tasks inherit it from the one that starts them.
current: ContextVar[Span] = ContextVar("current", default=NO_SPAN)


class Spanned:
    """In front of the application: begins and ends the spans. Pure ASGI."""

    def __init__(self, app: ASGIApp, spans: Spans) -> None:
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        path, status = scope["path"], 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        span = self._spans.start(f"POST {path}", Headers(scope=scope).get("traceparent", ""), "server")
        span.set({"http.request.method": "POST", "http.route": path, "url.path": path, "url.scheme": scope["scheme"]})
        current.set(span)
        try:
            await self._app(scope, receive, send_noted)
        except Exception:
            # In the midst of an answer, whose status says nothing of it.
            status = 500
            raise
        finally:
            # Named behind this: by `Guard`, and by the body.
            if name := scope.get("state", {}).get("request_id"):
                span.set({"paceline.request_id": name})
            if status:
                span.set({"http.response.status_code": status})
            if status >= 400:
                span.fail(str(status))
            span.end()


def note_failure(error: Exception) -> None:
    """The request's span fails, with gRPC's code: an answer's status can't say it once the answer has begun."""
    if isinstance(error, PacelineError):
        current.get().fail(code_of(error).name)
