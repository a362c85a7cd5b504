from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from gateway.config import GatewaySettings
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.dialect import Dialect
from gateway.dialects.infill import FillInTheMiddle
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses
from gateway.endpoints import CountEndpoint, DetokenizeErrors, Endpoints, Gateway, GenerateEndpoint, TokenizeErrors
from gateway.errors import Errors, HttpError
from gateway.middleware import AdmissionMiddleware, SlashIgnored
from gateway.telemetry import GatewayMetrics, RequestSpans
from paceline.keys import KeyRing, is_loopback, is_of_this_machine, is_private_name
from paceline.observability.spans import NO_SPANS, Spans

COUNT_INPUT, COUNT_MESSAGES = "/v1/responses/input_tokens", "/v1/messages/count_tokens"
# The endpoints that generate, one per path.
DIALECTS: tuple[Dialect, ...] = (
    Chat(),
    Completions(),
    RESPONSES := Responses(),
    MESSAGES := Messages(),
    FillInTheMiddle(),
)
_ERRORS: Mapping[str, Errors] = {each.path: each for each in DIALECTS} | {
    COUNT_INPUT: RESPONSES,
    COUNT_MESSAGES: MESSAGES,
    "/tokenize": TokenizeErrors(),
    "/detokenize": DetokenizeErrors(),
}
OPENAI_ERRORS = Errors()
STATIC = Path(__file__).parent / "static"
# The page loads nothing from elsewhere and runs no inline scripts.
PAGE_HEADERS = {"content-security-policy": "default-src 'self'", "x-content-type-options": "nosniff"}


def errors_of(scope: Scope) -> Errors:
    """Returns the spelling of a request's errors. Anthropic's clients name their version on every path."""
    path: str = scope["path"]
    is_anthropic = path.startswith("/v1/messages/") or "anthropic-version" in Headers(scope=scope)
    return _ERRORS.get(path, MESSAGES if is_anthropic else OPENAI_ERRORS)


def make_app(settings: GatewaySettings, spans: Spans = NO_SPANS) -> Starlette:
    """Raises ConfigError if the API keys can't be read."""
    gateway = Gateway(settings)
    endpoints = Endpoints(gateway)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with gateway:
            yield

    routes = [
        *(Route(each.path, GenerateEndpoint(gateway, each), methods=["POST"]) for each in DIALECTS),
        Route(
            COUNT_INPUT,
            CountEndpoint(gateway, RESPONSES, {"object": "response.input_tokens"}).respond,
            methods=["POST"],
        ),
        Route(COUNT_MESSAGES, CountEndpoint(gateway, MESSAGES, {}).respond, methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{model:path}", endpoints.model),
        Route("/v1/deployment", endpoints.deployment),
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/tokenizer_info", endpoints.tokenizer_info),
        Route("/metrics", endpoints.metrics),
        Route("/health", endpoints.health),
        Route("/ready", endpoints.ready),
        Route("/", page),
    ]
    paths = {route.path for route in routes if not route.param_convertors}
    app = Starlette(
        routes=[*routes, Mount("/static", StaticFiles(directory=STATIC))],
        middleware=make_middleware(settings, paths, gateway.metrics, spans),
        exception_handlers={HTTPException: on_framework_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.exposition = gateway.exposition
    return app


def make_middleware(
    settings: GatewaySettings, paths: Collection[str], metrics: GatewayMetrics, spans: Spans
) -> list[Middleware]:
    """Orders middleware from the outside in."""
    keys = KeyRing(settings.api_keys) if settings.api_keys else None
    middleware = [Middleware(SlashIgnored)]
    if settings.allowed_origins:
        cors = Middleware(
            CORSMiddleware, allow_origins=[each.strip() for each in settings.allowed_origins.split(",")], allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["retry-after", "x-request-id"],
        )  # fmt: skip
        middleware.append(cors)
    if spans.are_kept:
        middleware.append(Middleware(RequestSpans, spans=spans, paths=[each.path for each in DIALECTS]))
    guard = Middleware(
        AdmissionMiddleware, keys=keys, max_open=settings.max_open_requests, is_own_host=_own_hosts(settings), counted_paths=paths,
        errors_of=errors_of, metrics=metrics,
    )  # fmt: skip
    return [*middleware, guard]


def _own_hosts(settings: GatewaySettings) -> Callable[[str], bool] | None:
    """Returns which hosts are served; None: all.

    A page's script has no key, and no certificate is valid for its name; a proxy is in front of a socket.
    """
    if settings.api_keys or settings.listen.startswith("unix:"):
        return None
    is_own = is_loopback if is_of_this_machine(settings.listen) else is_private_name
    if is_own is is_private_name and settings.tls:
        return None
    return lambda host: is_own(host) or settings.allows_host(host)


async def page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=PAGE_HEADERS)


async def on_framework_error(request: Request, error: Exception) -> Response:
    """Leaves the response to `AdmissionMiddleware`."""
    assert isinstance(error, HTTPException)
    # StaticFiles does not name the methods it allows.
    headers = error.headers or ({"allow": "GET, HEAD"} if error.status_code == 405 else None)
    raise HttpError(error.status_code, f"{request.method} {request.url.path[:100]}: {error.detail}", headers=headers)
