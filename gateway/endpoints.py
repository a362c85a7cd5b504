"""What all endpoints share: the coordinators, what tokens are called, and the model's name."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.config import GatewaySettings
from gateway.errors import JsonResponse, bad_request, no_such_model, unavailable
from gateway.fields import DRAFT_LENGTH, flag, get, names_at, whole_numbers
from gateway.generation import send_events, until_client_goes
from gateway.http import read_body
from gateway.middleware import read_request_id_field
from gateway.openai import Form
from gateway.reply import Reply
from gateway.requests import HttpRequest, parse_messages
from gateway.router import Coordinators, TokenTexts
from gateway.telemetry import GatewayMetrics, VllmNames
from paceline.client import Prompt
from paceline.results import Deployment
from paceline.rpc.health import is_serving
from paceline.rpc.supervision import instance_of
from paceline.speculation import Bounds, DraftLength, DraftMode, EntropyAdaptive, SpeculationParams


class Gateway:
    """An asynchronous context: it has connections while it is open."""

    coordinators: Coordinators
    texts: TokenTexts

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.metrics = GatewayMetrics()
        # Ours, and the same under vLLM's names.
        self.exposition = CollectorRegistry()
        self.exposition.register(self.metrics.registry)
        self.exposition.register(VllmNames(self.metrics, settings.model_name))

    async def __aenter__(self) -> "Gateway":
        settings = self.settings
        self.coordinators = Coordinators(settings.addresses, settings.patience, settings.servers_tls, self.metrics)
        self.texts = TokenTexts(self.coordinators)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.coordinators.close()

    def model_name(self, deployment: Deployment) -> str:
        """What clients call the model."""
        return self.settings.model_name or deployment.target.name

    def check_model(self, body: Mapping[str, Any], deployment: Deployment) -> None:
        """Raises HttpError (404) for a model that is not served."""
        model, known = get(body, "model", str, "a text"), self.model_name(deployment)
        if model not in (None, known, deployment.target.name):
            raise no_such_model(model, known)


def key_of(request: Request) -> str | None:
    """The caller's key; `Guard` has read it."""
    key: str | None = request.state.key
    return key


Parse = Callable[[Mapping[str, Any], Deployment], HttpRequest]


class GenerateEndpoint:
    """One of them: how its body is read and its answer looks."""

    def __init__(self, gateway: Gateway, form: Form, parse: Parse) -> None:
        self._gateway = gateway
        self._form = form
        self._parse = parse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await read_body(request, self._gateway.settings.max_body_bytes)
        await until_client_goes(receive, self._answer(body, request, send))

    async def _answer(self, body: dict[str, Any], request: Request, send: Send) -> None:
        gateway, key = self._gateway, key_of(request)
        deployment = await gateway.coordinators.describe(key)
        gateway.check_model(body, deployment)
        asked = self._parse(body, deployment)
        asked = replace(asked, request_id=read_request_id_field(request, asked.request_id))
        if asked.echo or (asked.has_usage_in_every_chunk and len(asked.prompts) > 1):
            asked = await self._with_token_ids(asked, key)
        reply = Reply(self._form, asked, gateway.model_name(deployment), gateway.coordinators, gateway.texts, key)
        if asked.is_stream:
            await send_events(reply.chunks(), send, names_at(request.scope["path"]))
        else:
            response = JsonResponse(await reply.whole())
            await response(request.scope, request.receive, send)

    async def _with_token_ids(self, asked: HttpRequest, key: str | None) -> HttpRequest:
        """Prompts as token ids: what is echoed is said of each of them, and usage counts those that have not begun."""

        async def ids_of(text: str) -> list[int]:
            ask = self._gateway.coordinators.ask
            return await ask("", lambda each: each.client_for(key).tokenize(text, raw=True))

        prompts: list[Prompt] = [await ids_of(each) if isinstance(each, str) else each for each in asked.prompts]
        return replace(asked, prompts=prompts)


HEALTH_TIMEOUT_S = 1.0
TOKENIZE = (
    "model", "prompt", "messages", "add_special_tokens", "add_generation_prompt", "parse_special_tokens",
    "return_token_strs",
)  # fmt: skip
DETOKENIZE = ("model", "tokens")


class Endpoints:
    """Handlers, each for one path."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        """This process lives; where `paceline up` has started it, which of them it is."""
        instance = instance_of(os.environ)
        more = {} if instance is None else {"instance": instance.removeprefix("instance.")}
        return JsonResponse({"status": "ok", **more})

    async def ready(self, request: Request) -> Response:
        """A coordinator serves."""
        settings = self._gateway.settings
        checks = [
            asyncio.to_thread(is_serving, each, HEALTH_TIMEOUT_S, tls=settings.servers_tls)
            for each in settings.addresses
        ]
        if any(await asyncio.gather(*checks)):
            return JsonResponse({"status": "ready"})
        raise unavailable("no coordinator serves")

    async def metrics(self, request: Request) -> Response:
        """For Prometheus, in the form it asks for."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._gateway.exposition), headers={"content-type": kind})

    async def models(self, request: Request) -> Response:
        card = self._card(await self._describe(request))
        return JsonResponse({"object": "list", "data": [card]})

    async def model(self, request: Request) -> Response:
        deployment, asked = await self._describe(request), request.path_params["model"]
        self._gateway.check_model({"model": asked}, deployment)
        return JsonResponse(self._card(deployment))

    async def deployment(self, request: Request) -> Response:
        """Both models, limits, the defaults of speculation, and how many generations run."""
        found = await self._gateway.coordinators.describe(key_of(request), as_it_is_now=True)
        return JsonResponse(
            {
                "version": found.version,
                "target": asdict(found.target),
                "draft": None if found.draft is None else asdict(found.draft),
                "defaults": _speculation(found.defaults),
                "running": found.running,
                "max_running": found.max_running,
            }
        )

    async def tokenizer_info(self, request: Request) -> Response:
        deployment = await self._describe(request)
        return JsonResponse(
            {
                **asdict(deployment.tokenizer),
                "max_model_len": deployment.target.max_model_len,
                "model_max_length": deployment.target.max_model_len,
                "vocab_size": deployment.target.vocab_size,
            }
        )

    async def tokenize(self, request: Request) -> Response:
        """Of `prompt`, or of `messages` through the chat template."""
        body = await self._body(request, TOKENIZE)
        deployment, key = await self._describe(request), key_of(request)
        self._gateway.check_model(body, deployment)
        is_chat = body.get("messages") is not None
        text = get(body, "prompt", str, "a text")
        if is_chat == (text is not None):
            raise bad_request("prompt", "there must be either prompt or messages")
        prompt: Prompt = parse_messages(body) if is_chat else text
        special, opening = flag(body, "add_special_tokens", not is_chat), flag(body, "add_generation_prompt", True)
        parses = flag(body, "parse_special_tokens", not is_chat)
        if not (is_chat or parses):
            raise bad_request("parse_special_tokens", "parse_special_tokens is false; it must be true with prompt")
        ask = self._gateway.coordinators.ask
        ids = await ask(
            "",
            lambda each: each.client_for(key).tokenize(
                prompt,
                raw=not is_chat,
                add_special_tokens=special,
                add_generation_prompt=opening,
                parse_special_tokens=is_chat and parses,
            ),
        )
        names = None
        if flag(body, "return_token_strs"):
            await self._gateway.texts.load(set(ids), key)
            names = [self._gateway.texts[token].text for token in ids]
        longest = deployment.target.max_model_len
        return JsonResponse({"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": names})

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request, DETOKENIZE)
        key = key_of(request)
        self._gateway.check_model(body, await self._describe(request))
        ids = get(body, "tokens", list, "a list of token ids", [])
        if not all(type(each) is int and 0 <= each < 2**31 for each in ids):
            raise bad_request("tokens", "tokens is not a list of token ids")
        ask = self._gateway.coordinators.ask
        found = await ask("", lambda each: each.client_for(key).detokenize(ids, skip_special_tokens=False))
        return JsonResponse({"prompt": found.text})

    async def _describe(self, request: Request) -> Deployment:
        return await self._gateway.coordinators.describe(key_of(request))

    async def _body(self, request: Request, names: tuple[str, ...]) -> dict[str, Any]:
        body = await read_body(request, self._gateway.settings.max_body_bytes)
        for name in body:
            if name not in names:
                raise bad_request(name[:100], f"there is no field {name[:100]!r}; there are {', '.join(names)}")
        return whole_numbers(body)

    def _card(self, deployment: Deployment) -> dict[str, Any]:
        """As OpenAI's list has it, and with the length that clients of other servers look for."""
        return {
            "id": self._gateway.model_name(deployment), "object": "model", "created": 0, "owned_by": "paceline",
            "root": deployment.target.name, "parent": None, "max_model_len": deployment.target.max_model_len,
        }  # fmt: skip


def _speculation(defaults: SpeculationParams) -> dict[str, Any]:
    """As the field `speculation` of a request takes it."""
    return {
        "enabled": defaults.enabled,
        "drafter": defaults.drafter.value,
        **draft_length_fields(defaults.num_draft_tokens),
        "rule": None if defaults.rule is None else defaults.rule.value,
        "coupled": defaults.draft_mode is DraftMode.COUPLED,
        "lenience": defaults.lenience,
        "draft_temperature": defaults.draft_temperature,
    }


def draft_length_fields(length: DraftLength) -> dict[str, Any]:
    """The fields from which parse_draft_length makes this length; None: left out."""
    match length:
        case Bounds() as bounds:
            text, beta = "adaptive", None
        case EntropyAdaptive(bounds, beta):
            text = "entropy"
        case number:
            return dict.fromkeys(DRAFT_LENGTH) | {"draft_tokens": number}
    return dict(zip(DRAFT_LENGTH, (text, bounds.min, bounds.max, beta), strict=True))
