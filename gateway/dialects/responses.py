"""OpenAI's responses. Nothing is stored: every request sends its whole input."""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from gateway.dialects.choices import finite
from gateway.dialects.dialect import REASONING_SIGNATURE, Dialect, ItemsReply, named_event
from gateway.dialects.responses_input import CUSTOM_INPUT, PREFIXES, parse_format, parse_input, parse_tools
from gateway.errors import Errors, FieldNames, HttpError, bad_request, bad_value
from gateway.fields import (
    CHAT_NAMES,
    HINTS,
    MODEL,
    OURS,
    STREAMED,
    TOOLS,
    Field,
    Fields,
    Values,
    flag,
    listing,
    number,
    table,
    text,
    whole_numbers,
)
from gateway.items import Item, ItemDelta, ItemDone, ItemStarted, Kind, Step
from gateway.requests import (
    HttpRequest,
    Serving,
    hinted_options,
    parse_request,
    parse_sampling,
)
from gateway.resumed_generation import Generation
from gateway.tool_fields import ToolName
from paceline.results import Chunk, Finish

FIELDS = Fields(
    {
        "input": Field("a text, or a list of items"),
        "instructions": text("a system message"),
        **TOOLS,
        "tool_choice": Field("none, auto, required, a tool or allowed_tools"),
        "parallel_tool_calls": flag("several calls in one answer", True),
        "text": table("format, and verbosity, which is ignored"),
        "reasoning": table("effort, and summary, which is repeated"),
        "include": listing("log-probabilities or encrypted reasoning", "a list of texts"),
        "max_output_tokens": number("maximum number of tokens to generate", stands_for="max_tokens"),
        "top_logprobs": number("likeliest tokens at each position", "a whole number in [0, 20]"),
        **STREAMED,
        "model": MODEL,
        "truncation": Field("repeated"),
        # Hints that are repeated in the response.
        "metadata": table("the client's own labels"),
        "user": text("identifies the end user"),
        "safety_identifier": text("identifies the end user"),
        "prompt_cache_key": text("requests with the same key go to the same coordinator"),
        **OURS,
    },
    {
        **HINTS,
        "max_tool_calls": "no tool runs here",
        "background_options": "nothing runs in the background",
        "image": "none is made",
    },
    # Nothing is stored, and nothing runs in the background.
    {"previous_response_id": (), "conversation": (), "prompt": (), "background": (False,)},
)
# Repeated in the response as they came.
REPEATED = ("instructions", "max_output_tokens", "metadata", "tools", "top_logprobs", "user", "safety_identifier")
# Among what is repeated: words of a list.
CHOSEN = {
    "truncation": ("auto", "disabled"), "reasoning.summary": ("auto", "concise", "detailed", "none"),
    "text.verbosity": ("low", "medium", "high"),
}  # fmt: skip
ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"


class Responses(Dialect):
    """/v1/responses."""

    path = "/v1/responses"
    stream_repeats = True
    field_names: ClassVar[FieldNames] = {
        **CHAT_NAMES, "chat": "input", "chat.messages": "input", "prompt": "input", "max_tokens": "max_output_tokens",
    }  # fmt: skip

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        body = whole_numbers(body)
        values = FIELDS.read(body)
        conversation = parse_input(values)
        tools = parse_tools(values, serving.tool_choice_default)
        effort = values["reasoning"].get("effort")
        if effort is not None and not isinstance(effort, str):
            raise bad_value("reasoning.effort", effort, "a string")
        _check_chosen(values)
        num_tokens, num_likeliest = values["max_tokens"], values["top_logprobs"] or 0
        sampling = parse_sampling(
            values,
            serving.sampling_defaults,
            max_tokens=serving.deployment.target.max_model_len if num_tokens is None else num_tokens,
            logprobs=num_likeliest if num_likeliest or LOGPROBS in values["include"] else None,
        )
        return parse_request(
            values,
            serving,
            [conversation.messages],
            sampling,
            parse_format(values["text"]),
            tools,
            conversation.names,
            template_options=hinted_options(values, effort, serving),
            session=values["prompt_cache_key"],
            repeated={
                **{name: _repeatable(name, body[name]) for name in REPEATED if body.get(name) is not None},
                "tool_choice": _repeatable("tool_choice", body.get("tool_choice", "auto")),
                "parallel_tool_calls": tools.parallel,
                "reasoning": _repeatable(
                    "reasoning", {"effort": effort, "summary": values["reasoning"].get("summary")}
                ),
                "text": _repeatable("text", body.get("text") or {"format": {"type": "text"}}),
                "truncation": body.get("truncation") or "disabled",
                "include": body.get("include") or [],
            },
        )

    def reply(self, generation: Generation) -> "ResponsesReply":
        return ResponsesReply(generation, self)


def _check_chosen(values: Values) -> None:
    """Refuses what no client could read in the response. Raises HttpError."""
    for field, allowed in CHOSEN.items():
        outer, _, name = field.rpartition(".")
        value = (values[outer] if outer else values).get(name)
        if value is not None and value not in allowed:
            raise bad_value(field, value, f"one of {', '.join(allowed)}")


def _repeatable(field: str, value: Any) -> Any:
    """Refuses what is nested deeper than the response can be. Raises HttpError."""
    try:
        orjson.dumps(value)
    except TypeError:
        raise bad_request(field, f"{field} is nested too deeply; it must have fewer levels") from None
    return value


class ResponsesReply(ItemsReply):
    def __init__(self, generation: Generation, errors: Errors) -> None:
        super().__init__(generation, errors)
        self._id = f"resp_{self._request.request_id}"
        self._created_s = int(time.time())
        self._num_events = 0
        # Log-probabilities of tokens whose text is not out, of those of the next delta, and of the open text.
        self._held: list[dict[str, Any]] = []
        self._ready: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._output: list[dict[str, Any]] = []

    def encode(self, body: dict[str, Any]) -> bytes:
        body["sequence_number"] = self._num_events
        self._num_events += 1
        return named_event(body)

    def begin(self) -> list[dict[str, Any]]:
        return [
            {"type": kind, "response": self._response("in_progress")}
            for kind in ("response.created", "response.in_progress")
        ]

    def beat(self) -> bytes:
        """Repeats an event: Codex does not count comments."""
        again = [{"type": "response.in_progress", "response": self._response("in_progress")}]
        return b"".join(map(self.encode, self.opening() or again))

    async def read_logprobs(self, chunk: Chunk) -> None:
        if self._request.sampling.logprobs is None:
            return
        texts = self._generation.texts
        likeliest = (token for each in chunk.logprobs for token in each.top_token_ids)
        await self._generation.load_texts({*chunk.token_ids, *likeliest})

        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {"token": texts[token].text, "logprob": finite(logprob), "bytes": list(texts[token].utf8)}

        for token, each, num_characters in zip(chunk.token_ids, chunk.logprobs, chunk.text_lengths, strict=True):
            top = [entry(*pair) for pair in zip(each.top_token_ids, each.top_logprobs, strict=True)]
            self._held.append({**entry(token, each.logprob), "top_logprobs": top})
            # Those behind the last text, such as the end's, are left out, wherever the rounds are cut.
            if num_characters:
                self._ready += self._held
                self._held = []

    def spell(self, step: Step) -> list[dict[str, Any]]:
        item = step.item
        place = {"item_id": self._item_id(item), "output_index": item.index}
        match step, item.kind:
            case ItemStarted(), kind:
                added = {"output_index": item.index, "item": self._item(item, is_open=True)}
                opened = [{"type": "response.output_item.added", **added}]
                if kind is not Kind.CALL:
                    part = {**place, "content_index": 0, "part": self._part(item, "", [])}
                    opened.append({"type": "response.content_part.added", **part})
                return opened
            case ItemDelta(_, new_text), Kind.TEXT:
                ready, self._ready = self._ready, []
                self._logprobs += ready
                delta = {**place, "content_index": 0, "delta": new_text, "logprobs": ready}
                return [{"type": "response.output_text.delta", **delta}]
            case ItemDelta(_, new_text), Kind.REASONING:
                return [{"type": "response.reasoning_text.delta", **place, "content_index": 0, "delta": new_text}]
            case ItemDelta(_, new_text), Kind.CALL:
                if self._is_custom(item):
                    # Its text is known once the JSON around it is whole.
                    return []
                return [{"type": "response.function_call_arguments.delta", **place, "delta": new_text}]
            case ItemDone(), _:
                return self._close(item, place)
        return []

    def end(self, finish: Finish) -> list[dict[str, Any]]:
        kind = "response.incomplete" if finish.reason == "length" else "response.completed"
        return [{"type": kind, "response": self.answer()}]

    def answer(self) -> dict[str, Any]:
        is_cut = self._finish is not None and self._finish.reason == "length"
        response = self._response("incomplete" if is_cut else "completed")
        response |= {"completed_at": int(time.time()), "output": self._output, "usage": self._usage_body()}
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return {**response, **self.paceline}

    def failure(self, http_error: HttpError) -> list[dict[str, Any]]:
        code = (
            http_error.code if http_error.code in ("rate_limit_exceeded", "context_length_exceeded") else "server_error"
        )
        response = self._response("failed") | {"error": {"code": code, "message": http_error.message}}
        return [*self.opening(), {"type": "response.failed", "response": {**response, "output": self._output}}]

    def _close(self, item: Item, place: dict[str, Any]) -> list[dict[str, Any]]:
        done = self._item(item)
        self._output.append(done)
        if item.kind is Kind.CALL:
            if done["type"] == "custom_tool_call":
                text = done["input"]
                events = [
                    {"type": "response.custom_tool_call_input.delta", **place, "delta": text},
                    {"type": "response.custom_tool_call_input.done", **place, "input": text},
                ]
            else:
                whole = {**place, "name": done["name"], "arguments": item.text}
                events = [{"type": "response.function_call_arguments.done", **whole}]
        else:
            part = {**place, "content_index": 0, "part": done["content"][0]}
            if item.kind is Kind.TEXT:
                end = {**place, "content_index": 0, "text": item.text, "logprobs": self._logprobs}
                events = [{"type": "response.output_text.done", **end}]
                self._logprobs = []
            else:
                events = [{"type": "response.reasoning_text.done", **place, "content_index": 0, "text": item.text}]
            events.append({"type": "response.content_part.done", **part})
        return [*events, {"type": "response.output_item.done", "output_index": item.index, "item": done}]

    def _item(self, item: Item, is_open: bool = False) -> dict[str, Any]:
        """Returns the item as it is: empty when it opens."""
        status = "in_progress" if is_open else "completed" if item.is_whole else "incomplete"
        head: dict[str, Any] = {"id": self._item_id(item), "status": status}
        content = [] if is_open else [self._part(item, item.text, self._logprobs)]
        if item.kind is Kind.TEXT:
            return {"type": "message", **head, "role": "assistant", "content": content}
        if item.kind is Kind.REASONING:
            reasoning = {"type": "reasoning", **head, "summary": [], "content": content}
            if ENCRYPTED in self._request.repeated["include"] and not is_open:
                reasoning["encrypted_content"] = REASONING_SIGNATURE + base64.b64encode(item.text.encode()).decode()
            return reasoning
        name = self._request.tools.renamed.get(item.name, ToolName(item.name))
        call = {**head, "call_id": item.call_id, "name": name.name}
        if name.is_custom:
            return {"type": "custom_tool_call", **call, "input": _custom_input(item.text)}
        space = {"namespace": name.namespace} if name.namespace else {}
        return {"type": "function_call", **call, **space, "arguments": item.text}

    def _part(self, item: Item, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        if item.kind is Kind.REASONING:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item_id(self, item: Item) -> str:
        return f"{PREFIXES[item.kind]}{self._request.request_id}_{item.index}"

    def _is_custom(self, item: Item) -> bool:
        name = self._request.tools.renamed.get(item.name)
        return name is not None and name.is_custom

    def _response(self, status: str) -> dict[str, Any]:
        repeated = {key: value for key, value in self._request.repeated.items() if key != "include"}
        return {
            "id": self._id, "object": "response", "created_at": self._created_s, "status": status, "background": False,
            "completed_at": None, "error": None, "incomplete_details": None, "instructions": None,
            "max_output_tokens": None, "metadata": {}, "model": self._generation.model, "output": [],
            "previous_response_id": None, "service_tier": "default", "store": False,
            "temperature": self._request.sampling.temperature, "tools": [], "top_logprobs": 0,
            "top_p": self._request.sampling.top_p, "usage": None, "user": None, **repeated,
        }  # fmt: skip

    def _usage_body(self) -> dict[str, Any]:
        usage = self._usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _custom_input(arguments: str) -> str:
    """Returns the text in a custom tool's arguments; of arguments that were cut, what there is."""
    try:
        return str(json.loads(arguments)[CUSTOM_INPUT])
    except (ValueError, KeyError, TypeError):
        return arguments
