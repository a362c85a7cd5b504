"""The endpoints that answer at once: models, the deployment, the tokenizer, health."""

import asyncio
import os
from dataclasses import asdict
from typing import Any

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from gateway.bodies import flag, get, read_body
from gateway.errors import refuse, unavailable
from gateway.fields import DRAFT_LENGTH, whole_numbers
from gateway.gateway import Gateway, key_of
from gateway.json_response import JsonResponse
from gateway.prompts import messages_of
from paceline.client import Prompt
from paceline.results import Deployment
from paceline.rpc.health import is_serving
from paceline.rpc.server import instance_of
from paceline.speculation import Bounds, DraftLength, DraftMode, EntropyAdaptive, SpeculationParams

HEALTH_TIMEOUT_S = 1.0
TOKENIZE = (
    "model", "prompt", "messages", "add_special_tokens", "add_generation_prompt", "parse_special_tokens",
    "return_token_strs",
)  # fmt: skip
DETOKENIZE = ("model", "tokens")


class Describing:
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
            raise refuse("prompt", "there must be either prompt or messages")
        prompt: Prompt = messages_of(body) if is_chat else text
        special, opening = flag(body, "add_special_tokens", not is_chat), flag(body, "add_generation_prompt", True)
        parses = flag(body, "parse_special_tokens", not is_chat)
        if not (is_chat or parses):
            raise refuse("parse_special_tokens", "parse_special_tokens is false; it must be true with prompt")
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
            await self._gateway.texts.learn(set(ids), key)
            names = [self._gateway.texts[token].text for token in ids]
        longest = deployment.target.max_model_len
        return JsonResponse({"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": names})

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request, DETOKENIZE)
        key = key_of(request)
        self._gateway.check_model(body, await self._describe(request))
        ids = get(body, "tokens", list, "a list of token ids", [])
        if not all(type(each) is int and 0 <= each < 2**31 for each in ids):
            raise refuse("tokens", "tokens is not a list of token ids")
        ask = self._gateway.coordinators.ask
        found = await ask("", lambda each: each.client_for(key).detokenize(ids, skip_special_tokens=False))
        return JsonResponse({"prompt": found.text})

    async def _describe(self, request: Request) -> Deployment:
        return await self._gateway.coordinators.describe(key_of(request))

    async def _body(self, request: Request, names: tuple[str, ...]) -> dict[str, Any]:
        body = await read_body(request, self._gateway.settings.max_body_bytes)
        for name in body:
            if name not in names:
                raise refuse(name[:100], f"there is no field {name[:100]!r}; there are {', '.join(names)}")
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
        **fields_of_length(defaults.num_draft_tokens),
        "rule": None if defaults.rule is None else defaults.rule.value,
        "coupled": defaults.draft_mode is DraftMode.COUPLED,
        "lenience": defaults.lenience,
        "draft_temperature": defaults.draft_temperature,
    }


def fields_of_length(length: DraftLength) -> dict[str, Any]:
    """The fields from which parse_draft_length makes this length; None: left out."""
    match length:
        case Bounds() as bounds:
            text, beta = "adaptive", None
        case EntropyAdaptive(bounds, beta):
            text = "entropy"
        case number:
            return dict.fromkeys(DRAFT_LENGTH) | {"draft_tokens": number}
    return dict(zip(DRAFT_LENGTH, (text, bounds.min, bounds.max, beta), strict=True))
