"""The endpoints that generate: /v1/chat/completions and /v1/completions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from gateway.bodies import read_body
from gateway.fields import names_at
from gateway.forms import Form
from gateway.gateway import Gateway, key_of
from gateway.json_response import JsonResponse
from gateway.reply import Reply
from gateway.request_ids import take_from_body
from gateway.requests import HttpRequest
from gateway.sse import send_events, until_client_goes
from paceline.client import Prompt
from paceline.results import Deployment

Parse = Callable[[Mapping[str, Any], Deployment], HttpRequest]


class Generating:
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
        asked = replace(asked, request_id=take_from_body(request, asked.request_id))
        if asked.echo or (asked.has_usage_in_every_chunk and len(asked.prompts) > 1):
            asked = await self._with_ids(asked, key)
        reply = Reply(self._form, asked, gateway.model_name(deployment), gateway.coordinators, gateway.texts, key)
        if asked.is_stream:
            await send_events(reply.chunks(), send, names_at(request.scope["path"]))
        else:
            response = JsonResponse(await reply.whole())
            await response(request.scope, request.receive, send)

    async def _with_ids(self, asked: HttpRequest, key: str | None) -> HttpRequest:
        """Prompts as token ids: what is echoed is said of each of them, and usage counts those that have not begun."""

        async def ids_of(text: str) -> list[int]:
            ask = self._gateway.coordinators.ask
            return await ask("", lambda each: each.client_for(key).tokenize(text, raw=True))

        prompts: list[Prompt] = [await ids_of(each) if isinstance(each, str) else each for each in asked.prompts]
        return replace(asked, prompts=prompts)
