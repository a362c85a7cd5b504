"""The application: paths, and what answers at each. It runs in any ASGI server."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.config import GatewaySettings
from gateway.endpoints import Endpoints, Gateway, GenerateEndpoint
from gateway.errors import HttpError, bad_request, error_response, from_paceline
from gateway.fields import names_at
from gateway.middleware import Guard, SlashIgnored
from gateway.openai import ChatForm, TextForm, parse_chat, parse_text
from gateway.telemetry import GatewayMetrics, RequestSpans, record_failure
from paceline.errors import PacelineError
from paceline.keys import KeyRing, is_of_this_machine
from paceline.observability.spans import NO_SPANS, Spans

log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"
# Nothing from elsewhere, and no script that is not a file of ours.
PAGE_HEADERS = {"content-security-policy": "default-src 'self'", "x-content-type-options": "nosniff"}


def make_app(settings: GatewaySettings, spans: Spans = NO_SPANS) -> Starlette:
    """The ASGI application. `spans`: of requests. Raises ConfigError for a file of keys that can't be read."""
    gateway = Gateway(settings)
    endpoints = Endpoints(gateway)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with gateway:
            yield

    routes = [
        Route("/v1/chat/completions", GenerateEndpoint(gateway, ChatForm(), parse_chat), methods=["POST"]),
        Route("/v1/completions", GenerateEndpoint(gateway, TextForm(), parse_text), methods=["POST"]),
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
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: dict[Any, Any] = {
        HttpError: on_http_error, PacelineError: on_paceline_error, HTTPException: on_framework_error,
        RecursionError: on_depth,
    }  # fmt: skip
    middleware = make_middleware(settings, gateway.metrics, spans)
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.exposition = gateway.exposition
    return app


def make_middleware(settings: GatewaySettings, metrics: GatewayMetrics, spans: Spans) -> list[Middleware]:
    """From the outside in: which path it is, whose pages may call, what is told of the request, who may call."""
    keys = KeyRing(settings.api_keys) if settings.api_keys else None
    loopback_only = keys is None and not settings.listen.startswith("unix:") and is_of_this_machine(settings.listen)
    guard = Middleware(
        Guard, keys=keys, max_open=settings.max_open_requests, loopback_only=loopback_only, metrics=metrics
    )
    slash, inner = (
        Middleware(SlashIgnored),
        [Middleware(RequestSpans, spans=spans), guard] if spans.are_kept else [guard],
    )
    if settings.allow_origin is None:
        return [slash, *inner]
    cors = Middleware(
        CORSMiddleware, allow_origins=[settings.allow_origin], allow_methods=["GET", "POST"], allow_headers=["*"],
        expose_headers=["retry-after", "x-request-id"],
    )  # fmt: skip
    return [slash, cors, *inner]


async def page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=PAGE_HEADERS)


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error_response(error)


async def on_paceline_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PacelineError)
    record_failure(error)
    return error_response(from_paceline(error, names_at(request.scope["path"])))


async def on_framework_error(request: Request, error: Exception) -> Response:
    """No such path, or not by this method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:100]}: {error.detail}"
    response = error_response(HttpError(error.status_code, message, "invalid_request_error"))
    # Which methods there are: the files of the page are silent about theirs.
    response.headers.update(error.headers or ({"allow": "GET, HEAD"} if error.status_code == 405 else {}))
    return response


async def on_depth(request: Request, error: Exception) -> Response:
    """Whoever looked into the body ran out of depth."""
    return error_response(bad_request("body", "the body is nested too deeply"))
