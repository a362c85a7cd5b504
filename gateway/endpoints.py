import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import Any, ClassVar
from urllib.parse import quote

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.answer_memory import MAX_BYTES, AnswerMemory
from gateway.bodies import Bodies
from gateway.config import GatewaySettings
from gateway.dialects.dialect import Dialect, EventStream
from gateway.errors import Errors, FieldNames, JsonResponse, bad_request, no_such_model, renamed, unavailable
from gateway.fields import (
    DRAFT_LENGTH,
    MESSAGES_NAMES,
    MODEL,
    PROMPT_NAMES,
    TEMPLATE_OPTIONS,
    TOOLS,
    Field,
    Fields,
    Values,
    flag,
    listing,
    text,
    whole_numbers,
)
from gateway.middleware import key_of, owner_of, take_request_id_from_body
from gateway.requests import HttpRequest, Serving, are_token_ids, parse_messages
from gateway.resumed_generation import Generation, until_disconnect
from gateway.router import Coordinators
from gateway.telemetry import GatewayMetrics, exposition
from gateway.token_texts import TokenTexts
from paceline.checks import require_at_most
from paceline.client import Prompt
from paceline.errors import InvalidArgument
from paceline.keys import find_key, private_salt
from paceline.results import Deployment
from paceline.rpc.address_source import AddressSource
from paceline.rpc.health import is_serving
from paceline.rpc.server import instance_of
from paceline.sampling_params import MAX_SALT_CHARACTERS
from paceline.speculation_params import Bounds, Drafter, DraftLength, EntropyAdaptive, SpeculationParams

HEALTH_TIMEOUT_S = 1.0
TOKENIZE = Fields(
    {
        "model": MODEL,
        "prompt": text("a text", None),
        "messages": Field("a chat's"),
        "add_special_tokens": flag("default: true with messages alone", None),
        "add_generation_prompt": flag("opens the assistant's turn", True),
        "parse_special_tokens": flag("default: true with prompt alone", None),
        "return_token_strs": flag("the text of each token"),
        **TOOLS,
        **TEMPLATE_OPTIONS,
        "continue_final_message": flag("leaves the last message open"),
    }
)
DETOKENIZE = Fields({"model": MODEL, "tokens": listing("token ids", "a list of token ids")})
# By which coding agents name a conversation.
SESSION_HEADERS = ("x-session-affinity", "session-id", "x-claude-code-session-id")
LEFT_OUT_HEADER = "x-paceline-left-out"


class TokenizeErrors(Errors):
    field_names: ClassVar[FieldNames] = {**MESSAGES_NAMES, **PROMPT_NAMES}


class DetokenizeErrors(Errors):
    field_names: ClassVar[FieldNames] = {"token_ids": "tokens"}


class Gateway:
    """State shared by all endpoints."""

    coordinators: Coordinators
    texts: TokenTexts

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.sampling_defaults = settings.parsed_sampling_defaults
        self.bodies = Bodies(settings.max_body_bytes)
        self.metrics = GatewayMetrics()
        self.answers = AnswerMemory(MAX_BYTES)
        self.exposition = exposition(self.metrics, settings.reported_model_name)

    async def __aenter__(self) -> "Gateway":
        settings = self.settings
        source = AddressSource("coordinators", settings.coordinators)
        self.coordinators = Coordinators(source, settings.retry_timeout, settings.servers_tls, self.metrics)
        await self.coordinators.start()
        self.texts = TokenTexts(self.coordinators)
        # Without a key of its own it would be refused, and counted, by coordinators that need one.
        is_known = settings.api_keys is None or find_key(None) is not None
        self._following = asyncio.create_task(self.coordinators.follow_target()) if is_known else None
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._following is not None:
            self._following.cancel()
        await self.coordinators.close()

    def model_name(self, deployment: Deployment) -> str:
        """Returns the name for clients."""
        return self.settings.reported_model_name or deployment.target.name

    def serving(self, deployment: Deployment) -> Serving:
        return Serving(deployment, self.sampling_defaults, self.settings.tool_choice_default)

    def salt(self, given: str, owner: str | None) -> str:
        """Raises InvalidArgument."""
        require_at_most(MAX_SALT_CHARACTERS, len(given), "cache_salt", "characters")
        return given if owner is None or self.settings.share_between_keys else private_salt(owner, given)

    def check_model(self, body: Mapping[str, Any], deployment: Deployment) -> None:
        """Raises HttpError (404)."""
        model, known = body.get("model"), self.model_name(deployment)
        if model is not None:
            MODEL.check("model", model)
        # Clients without a setting for it send an empty one.
        if model not in (None, "", known, deployment.target.name) and not self.settings.is_name(model):
            raise no_such_model(model, known)

    async def parse(self, body: dict[str, Any], request: Request, dialect: Dialect) -> tuple[Deployment, HttpRequest]:
        """Raises HttpError and InvalidArgument."""
        deployment = await self.coordinators.describe(key_of(request))
        self.check_model(body, deployment)
        return deployment, await self.bodies.run(request, lambda: dialect.parse(body, self.serving(deployment)))


class GenerateEndpoint:
    """Serves a dialect."""

    def __init__(self, gateway: Gateway, dialect: Dialect) -> None:
        self._gateway = gateway
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with AsyncExitStack() as held:
            body = await held.enter_async_context(self._gateway.bodies.read(request))
            work = self._respond(body, held, request, send)
            del body
            await until_disconnect(receive, work)

    async def _respond(self, body: dict[str, Any], held: AsyncExitStack, request: Request, send: Send) -> None:
        """`held`: the body's memory, until it is parsed."""
        gateway, key = self._gateway, key_of(request)
        deployment, asked = await gateway.parse(body, request, self._dialect)
        del body
        await held.aclose()
        session = asked.session or next(filter(None, map(request.headers.get, SESSION_HEADERS)), "")
        asked = replace(
            asked,
            request_id=take_request_id_from_body(request, asked.request_id),
            session=session,
            cache_salt=gateway.salt(asked.cache_salt, owner_of(request)),
        )
        if asked.echo or (asked.has_usage_in_every_chunk and len(asked.prompts) > 1):
            asked = await self._with_token_ids(asked, key)
        model = gateway.model_name(deployment)
        headers = {LEFT_OUT_HEADER: quote(", ".join(asked.tools.left_out), safe=", ")} if asked.tools.left_out else {}
        with gateway.answers.answer() as answer:
            check = answer.pass_on if asked.is_stream and not self._dialect.stream_repeats else answer.keep
            generation = Generation(asked, model, gateway.coordinators, gateway.texts, key, check, deployment.defaults)
            reply = self._dialect.reply(generation)
            if asked.is_stream:
                await EventStream(reply, self._dialect, headers, send).run()
            else:
                response = JsonResponse(await reply.whole(), headers=headers)
                await response(request.scope, request.receive, send)

    async def _with_token_ids(self, asked: HttpRequest, key: str | None) -> HttpRequest:
        """Tokenizes prompts for an echo's log-probabilities, and for usage before they begin."""

        async def tokenize(text: str) -> list[int]:
            return await self._gateway.coordinators.ask(key, lambda client: client.tokenize(text, raw=True))

        prompts: list[Prompt] = [await tokenize(each) if isinstance(each, str) else each for each in asked.prompts]
        return replace(asked, prompts=prompts)


class CountEndpoint:
    """Counts the prompt tokens of a dialect's requests."""

    def __init__(self, gateway: Gateway, dialect: Dialect, head: Mapping[str, str]) -> None:
        """`head`: constant fields of the response."""
        self._gateway = gateway
        self._dialect = dialect
        self._head = head

    async def respond(self, request: Request) -> Response:
        gateway, key = self._gateway, key_of(request)
        async with gateway.bodies.read(request) as body:
            _, asked = await gateway.parse(body, request, self._dialect)
        tools = [] if asked.tools.choice == "none" else asked.tools.tools
        try:
            ids = await gateway.coordinators.ask(
                key,
                lambda client: client.tokenize(
                    asked.prompts[0], template_options=asked.template_options, tools=tools or None
                ),
            )
        except InvalidArgument as error:
            raise renamed(error, asked.names) from None
        return JsonResponse({**self._head, "input_tokens": len(ids)})


class Endpoints:
    """Handlers of all other paths."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        """Reports the instance under `paceline up`."""
        instance = instance_of(os.environ)
        more = {} if instance is None else {"instance": instance.removeprefix("instance.")}
        return JsonResponse({"status": "ok", **more})

    async def ready(self, request: Request) -> Response:
        checks = [
            asyncio.to_thread(is_serving, each, HEALTH_TIMEOUT_S, tls=self._gateway.settings.servers_tls)
            for each in self._gateway.coordinators.addresses
        ]
        if any(await asyncio.gather(*checks)):
            return JsonResponse({"status": "ready"})
        raise unavailable("no coordinator is serving")

    async def metrics(self, request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._gateway.exposition), headers={"content-type": kind})

    async def models(self, request: Request) -> Response:
        model = self._model_object(await self._describe(request))
        return JsonResponse(
            {"object": "list", "data": [model], "has_more": False, "first_id": model["id"], "last_id": model["id"]}
        )

    async def model(self, request: Request) -> Response:
        deployment, asked = await self._describe(request), request.path_params["model"]
        self._gateway.check_model({"model": asked}, deployment)
        return JsonResponse(self._model_object(deployment))

    async def deployment(self, request: Request) -> Response:
        found = await self._gateway.coordinators.describe(key_of(request), as_it_is_now=True)
        return JsonResponse(
            {
                "version": found.version,
                "target": asdict(found.target),
                "draft": None if found.draft is None else asdict(found.draft),
                "defaults": _speculation_body(found.defaults),
                "drafters": {each.value: each.help for each in Drafter},
                "running": found.running,
                "max_num_seqs": found.max_num_seqs,
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
        gateway, values = self._gateway, await self._read_body(request, TOKENIZE)
        deployment, key = await self._describe(request), key_of(request)
        gateway.check_model(values, deployment)
        prompt: Prompt = values["prompt"]
        is_chat = values["messages"] is not None
        if is_chat == (prompt is not None):
            raise bad_request("prompt", "either prompt or messages must be given, and not both")
        if is_chat:
            prompt = await gateway.bodies.run(request, lambda: parse_messages(values))
        adds_special, parses = (
            not is_chat if values[name] is None else values[name]
            for name in ("add_special_tokens", "parse_special_tokens")
        )
        if not (is_chat or parses):
            raise bad_request("parse_special_tokens", "parse_special_tokens is false; it must be true with prompt")
        for name in ("chat_template_kwargs", "tools"):
            if values[name] and not is_chat:
                raise bad_request(name, f"{name} goes with messages alone")
        ids = await gateway.coordinators.ask(
            key,
            lambda client: client.tokenize(
                prompt,
                raw=not is_chat,
                add_special_tokens=adds_special,
                add_generation_prompt=values["add_generation_prompt"],
                parse_special_tokens=is_chat and parses,
                template_options=values["chat_template_kwargs"] if is_chat else None,
                tools=values["tools"],
            ),
        )
        texts = None
        if values["return_token_strs"]:
            await gateway.texts.load(set(ids), key)
            texts = [gateway.texts[token].text for token in ids]
        max_model_len = deployment.target.max_model_len
        return JsonResponse({"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": texts})

    async def detokenize(self, request: Request) -> Response:
        values = await self._read_body(request, DETOKENIZE)
        deployment = await self._describe(request)
        self._gateway.check_model(values, deployment)
        ids = list(values["tokens"])
        require_at_most(deployment.target.max_model_len, len(ids), "tokens", "ids")
        if not are_token_ids(ids):
            raise bad_request("tokens", "tokens must be a list of token ids")
        found = await self._gateway.coordinators.detokenize(ids, key_of(request))
        return JsonResponse({"prompt": found.text})

    async def _describe(self, request: Request) -> Deployment:
        return await self._gateway.coordinators.describe(key_of(request))

    async def _read_body(self, request: Request, fields: Fields) -> Values:
        async with self._gateway.bodies.read(request) as body:
            for name in body:
                if name not in fields.taken:
                    known = ", ".join(fields.taken)
                    raise bad_request(name[:100], f"unknown field {name[:100]!r}; known fields: {known}")
            return await self._gateway.bodies.run(request, lambda: fields.read(whole_numbers(body)))

    def _model_object(self, deployment: Deployment) -> dict[str, Any]:
        """Returns OpenAI's and Anthropic's model object with vLLM's `max_model_len`."""
        name, length = self._gateway.model_name(deployment), deployment.target.max_model_len
        return {
            "id": name, "object": "model", "created": 0, "owned_by": "paceline",
            "root": deployment.target.name, "parent": None, "max_model_len": length,
            "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active",
            "max_input_tokens": length, "max_tokens": length,
        }  # fmt: skip


def _speculation_body(defaults: SpeculationParams) -> dict[str, Any]:
    return {
        "enabled": defaults.enabled,
        "drafter": defaults.drafter.value,
        **draft_length_fields(defaults.num_speculative_tokens),
        "rule": None if defaults.rule is None else defaults.rule.value,
        "lenience": defaults.lenience,
        "draft_temperature": defaults.draft_temperature,
        "draft_model": defaults.draft_model,
    }


def draft_length_fields(length: DraftLength) -> dict[str, Any]:
    """Inverts `parse_draft_length`."""
    match length:
        case Bounds() as bounds:
            text, beta = "adaptive", None
        case EntropyAdaptive(bounds, beta):
            text = "entropy"
        case number:
            return dict.fromkeys(DRAFT_LENGTH) | {"num_speculative_tokens": number}
    return dict(zip(DRAFT_LENGTH, (text, bounds.min, bounds.max, beta), strict=True))
