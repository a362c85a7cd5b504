"""OpenAI's responses. Nothing is stored: every request sends its whole input."""

import base64
import binascii
import json
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from gateway.conversation import Conversation
from gateway.dialects.choices import finite
from gateway.dialects.dialect import THOUGHT_SIGNATURE, Dialect, ItemsReply, named_event
from gateway.errors import Errors, Fault, FieldNames, bad_request, bad_value
from gateway.fields import CHAT_NAMES, OURS, check_body, check_keys, flag, get, whole_numbers
from gateway.formats import NO_FORMAT, NamedFormat, json_format, schema_format
from gateway.generation import Generation
from gateway.items import Closed, Grown, Item, Kind, Opened, Step
from gateway.requests import (
    HttpRequest,
    Serving,
    hinted_options,
    parse_request,
    parse_sampling,
    parse_text_parts,
)
from gateway.tools import CHOICES, OfferedTools, Offers, ToolName
from paceline.results import Finish, Piece

TAKEN = (
    "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "include",
    "max_output_tokens", "top_logprobs", "stream", "stream_options", "model", "metadata", "truncation",
    *OURS,
)  # fmt: skip
IGNORED = (
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier",
    "max_tool_calls", "client_metadata", "moderation", "store", "context_management",
)  # fmt: skip
# Nothing is stored, and nothing runs in the background.
REFUSED: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (), "conversation": (), "prompt": (), "background": (False,),
}  # fmt: skip
# Repeated in the response as they came.
REPEATED = ("instructions", "max_output_tokens", "metadata", "tools", "top_logprobs", "user", "safety_identifier")
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
# Tools that a provider runs.
HOSTED = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "computer",
    "computer_use_preview", "local_shell", "shell", "apply_patch", "tool_search",
)  # fmt: skip
FUNCTION = ("type", "name", "description", "parameters", "strict")
CUSTOM = ("type", "name", "description", "format")
NAMESPACE = ("type", "name", "description", "tools")
TOOL_IGNORED = ("defer_loading", "allowed_callers", "output_schema", "cache_control")
# A custom tool, to the model.
CUSTOM_INPUT = "input"
CUSTOM_PARAMETERS = {
    "type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}  # fmt: skip
INSTEAD = "nothing is stored; send the whole input (in some clients: store false)"
# Of items' ids.
PREFIXES = {Kind.THOUGHT: "rs_", Kind.TEXT: "msg_", Kind.CALL: "fc_"}


class Responses(Dialect):
    """/v1/responses."""

    path = "/v1/responses"
    field_names: ClassVar[FieldNames] = {
        **CHAT_NAMES, "chat": "input", "chat.messages": "input", "prompt": "input", "max_tokens": "max_output_tokens",
    }  # fmt: skip

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        check_body(body, TAKEN, IGNORED, REFUSED)
        body = whole_numbers(body)
        conversation = _parse_input(body)
        tools = _parse_tools(body, serving.tool_choice_default)
        reasoning = get(body, "reasoning", dict, "an object", {})
        effort = reasoning.get("effort")
        sampling = parse_sampling(
            body,
            serving.sampling_defaults,
            max_tokens=get(body, "max_output_tokens", int, "a whole number", serving.deployment.target.max_model_len),
            logprobs=self._num_likeliest(body),
        )
        return parse_request(
            body,
            serving,
            [conversation.messages],
            sampling,
            _parse_format(body),
            tools,
            conversation.names,
            template_options=hinted_options(body, effort, serving),
            session=get(body, "prompt_cache_key", str, "a string", ""),
            repeated={
                **{name: _repeatable(name, body[name]) for name in REPEATED if body.get(name) is not None},
                "tool_choice": _repeatable("tool_choice", body.get("tool_choice", "auto")),
                "parallel_tool_calls": tools.parallel,
                "reasoning": _repeatable("reasoning", {"effort": effort, "summary": reasoning.get("summary")}),
                "text": _repeatable("text", body.get("text") or {"format": {"type": "text"}}),
                "truncation": _repeatable("truncation", body.get("truncation", "disabled")),
                "include": body.get("include") or [],
            },
        )

    def reply(self, generation: Generation) -> "ResponsesReply":
        return ResponsesReply(generation, self)

    @staticmethod
    def _num_likeliest(body: Mapping[str, Any]) -> int | None:
        include = get(body, "include", list, "a list of texts", [])
        num_likeliest = get(body, "top_logprobs", int, "a whole number in [0, 20]")
        return num_likeliest or 0 if num_likeliest or LOGPROBS in include else None


def _repeatable(field: str, value: Any) -> Any:
    """Refuses what is nested deeper than the response can be. Raises Fault."""
    try:
        orjson.dumps(value)
    except TypeError:
        raise bad_request(field, f"{field} is nested too deeply; it must have fewer levels") from None
    return value


def _parse_input(body: Mapping[str, Any]) -> Conversation:
    """Raises Fault."""
    conversation, given = Conversation(), body.get("input")
    if instructions := get(body, "instructions", str, "a string", ""):
        conversation.add("system", instructions, "instructions")
    if isinstance(given, str):
        conversation.add("user", given, "input")
    elif isinstance(given, list) and given:
        for at, item in enumerate(given):
            _parse_item(conversation, item, f"input[{at}]")
    else:
        raise bad_value("input", given, "a string, or a list with at least one item")
    return conversation


def _parse_item(conversation: Conversation, item: Any, field: str) -> None:
    match item:
        case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            namespace = item.get("namespace")
            conversation.add_call(call_id, f"{namespace}__{name}" if namespace else name, arguments, field)
        case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name), "input": str(text)}:
            arguments = json.dumps({CUSTOM_INPUT: text}, ensure_ascii=False)
            conversation.add_call(call_id, name, arguments, field)
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(call_id)}:
            output = parse_text_parts(item.get("output"), f"{field}.output", TEXT_PARTS)
            conversation.add("tool", output, field, tool_call_id=call_id)
        case {"type": "reasoning"}:
            if thought := _read_thought(item, field):
                conversation.add_thought(thought, field)
        case {"type": "function_call" | "custom_tool_call" | "function_call_output" | "custom_tool_call_output"}:
            raise bad_value(field, item, "a call with call_id, name and arguments or input, or an output with call_id")
        case {"role": "user" | "system" | "developer" as role} if item.get("type", "message") == "message":
            conversation.add(str(role), parse_text_parts(item.get("content"), f"{field}.content", TEXT_PARTS), field)
        case {"role": "assistant"} if item.get("type", "message") == "message":
            conversation.add_answer(_read_answer(item, field), field)
        case {"type": "message"}:
            raise bad_value(f"{field}.role", item.get("role"), "one of user, assistant, system, developer")
        case {"type": "item_reference", "id": str(name)} if name.startswith(PREFIXES[Kind.THOUGHT]):
            # Only the thought is lost.
            pass
        case {"type": "item_reference"}:
            raise bad_request(field, f"{field} refers to a stored item; {INSTEAD}", "unsupported_field")
        case {"type": "additional_tools"}:
            hint = "clients send it to models whose names begin with gpt-; choose another --model-name"
            raise bad_request(field, f"{field} is of type additional_tools, which is not supported; {hint}")
        case _:
            allowed = "a message, a call, an output or a thought: an object with one of their types"
            raise bad_value(field, item, allowed)


def _read_answer(item: Mapping[str, Any], field: str) -> str:
    """Reads text and refusals: both were said."""
    content = item.get("content")
    if isinstance(content, list):
        content = [_as_text(part) for part in content]
    return parse_text_parts(content, f"{field}.content", TEXT_PARTS)


def _as_text(part: Any) -> Any:
    match part:
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "output_text", "text": text}
    return part


def _read_thought(item: Mapping[str, Any], field: str) -> str:
    if content := item.get("content"):
        return parse_text_parts(content, f"{field}.content", TEXT_PARTS)
    encrypted = item.get("encrypted_content")
    if isinstance(encrypted, str) and encrypted.startswith(THOUGHT_SIGNATURE):
        try:
            return base64.b64decode(encrypted.removeprefix(THOUGHT_SIGNATURE), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise bad_value(f"{field}.encrypted_content", encrypted, "as this server sent it") from None
    return ""


def _parse_tools(body: Mapping[str, Any], default_choice: str) -> OfferedTools:
    """Raises Fault."""
    offers = Offers()
    for at, tool in enumerate(get(body, "tools", list, "a list of tools", [])):
        field = f"tools[{at}]"
        match tool:
            case {"type": "function"}:
                offers.add(_function(tool, field), field)
            case {"type": "namespace", "name": str(space), "tools": list(inner)}:
                check_keys(tool, NAMESPACE, field, TOOL_IGNORED)
                for place, each in enumerate(inner):
                    function = _function(each, f"{field}.tools[{place}]")
                    name = ToolName(str(function.get("name")), space)
                    offers.add({**function, "name": f"{space}__{name.name}"}, f"{field}.tools[{place}]", name)
            case {"type": "custom", "name": str(name)}:
                check_keys(tool, CUSTOM, field, TOOL_IGNORED)
                if isinstance(given := tool.get("format"), dict) and given.get("type") == "grammar":
                    # A grammar of the input can't hold inside a JSON string.
                    offers.unenforced.append(f"{field}.format")
                offers.add(
                    {"name": name, "description": tool.get("description"), "parameters": CUSTOM_PARAMETERS},
                    field,
                    ToolName(name, is_custom=True),
                )
            case {"type": str(kind)} if _is_hosted(kind):
                offers.left_out.append(kind)
            case {"type": str(kind)}:
                raise bad_value(f"{field}.type", kind, f"function, namespace, custom or one of {', '.join(HOSTED)}")
            case _:
                raise bad_value(field, tool, "an object with a type")
    choice, allowed = _parse_choice(body.get("tool_choice"), offers)
    parallel = flag(body, "parallel_tool_calls", True)
    return offers.make(choice, default_choice, parallel, "parameters", allowed)


def _function(tool: Any, field: str) -> dict[str, Any]:
    """Returns what the coordinator checks further."""
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise bad_value(field, tool, "an object of type function")
    check_keys(tool, FUNCTION, field, TOOL_IGNORED)
    return {key: tool.get(key) for key in FUNCTION[1:]}


def _is_hosted(kind: str) -> bool:
    """Types may end with a date."""
    return any(kind == each or kind.startswith(f"{each}_2") for each in HOSTED)


def _parse_choice(choice: Any, offers: Offers) -> tuple[str | None, list[str] | None]:
    """Returns the choice, and the tools that it allows (None: all). Raises Fault."""

    def name_of(given: Any) -> str:
        match given:
            case {"type": "function" | "custom", "name": str(name)}:
                return offers.known_as(ToolName(name, given.get("namespace", "")))
        raise bad_value("tool_choice.tools", given, "tools with a type and a name")

    match choice:
        case None | "none" | "auto" | "required":
            return choice, None
        case {"type": "function" | "custom"}:
            return name_of(choice), None
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(tools)} if tools:
            return str(mode), [name_of(each) for each in tools]
        case {"type": str(kind)} if _is_hosted(kind):
            raise bad_request("tool_choice", f"tool_choice is {kind}, a tool that this server can't run")
    raise bad_value("tool_choice", choice, f"one of {', '.join(CHOICES)}, or an object of a tool or allowed_tools")


def _parse_format(body: Mapping[str, Any]) -> NamedFormat:
    text = get(body, "text", dict, "an object", {})
    check_keys(text, ("format",), "text", ("verbosity",))
    given, field = text.get("format"), "text.format"
    match given:
        case None | {"type": "text"}:
            return NO_FORMAT
        case {"type": "json_object"}:
            return json_format(field)
        case {"type": "json_schema"}:
            check_keys(given, ("type", "name", "schema", "strict", "description"), field)
            return schema_format(given, field)
    raise bad_value(field, given, "an object whose type is text, json_object or json_schema")


class ResponsesReply(ItemsReply):
    def __init__(self, generation: Generation, errors: Errors) -> None:
        super().__init__(generation, errors)
        self._id = f"resp_{self._request.request_id}"
        self._created_s = int(time.time())
        self._num_events = 0
        # Log-probabilities of tokens whose text is not out, and of the open text.
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

    async def read_logprobs(self, piece: Piece) -> None:
        if self._request.sampling.logprobs is None:
            return
        texts = self._generation.texts
        likeliest = (token for each in piece.logprobs for token in each.top_token_ids)
        await self._generation.load_texts({*piece.token_ids, *likeliest})

        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {"token": texts[token].text, "logprob": finite(logprob), "bytes": list(texts[token].utf8)}

        self._ready += (
            {
                **entry(token, each.logprob),
                "top_logprobs": [entry(*pair) for pair in zip(each.top_token_ids, each.top_logprobs, strict=True)],
            }
            for token, each in zip(piece.token_ids, piece.logprobs, strict=True)
        )

    def spell(self, step: Step) -> list[dict[str, Any]]:
        item = step.item
        place = {"item_id": self._item_id(item), "output_index": item.index}
        match step, item.kind:
            case Opened(), kind:
                added = {"output_index": item.index, "item": self._item(item, is_open=True)}
                opened = [{"type": "response.output_item.added", **added}]
                if kind is not Kind.CALL:
                    part = {**place, "content_index": 0, "part": self._part(item, "", [])}
                    opened.append({"type": "response.content_part.added", **part})
                return opened
            case Grown(_, piece), Kind.TEXT:
                ready, self._ready = self._ready, []
                self._logprobs += ready
                delta = {**place, "content_index": 0, "delta": piece, "logprobs": ready}
                return [{"type": "response.output_text.delta", **delta}]
            case Grown(_, piece), Kind.THOUGHT:
                return [{"type": "response.reasoning_text.delta", **place, "content_index": 0, "delta": piece}]
            case Grown(_, piece), Kind.CALL:
                if self._is_custom(item):
                    # Its text is known once the JSON around it is whole.
                    return []
                return [{"type": "response.function_call_arguments.delta", **place, "delta": piece}]
            case Closed(), _:
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

    def failure(self, fault: Fault) -> list[dict[str, Any]]:
        code = fault.code if fault.code in ("rate_limit_exceeded", "context_length_exceeded") else "server_error"
        response = self._response("failed") | {"error": {"code": code, "message": fault.message}}
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
        if item.kind is Kind.THOUGHT:
            thought = {"type": "reasoning", **head, "summary": [], "content": content}
            if ENCRYPTED in self._request.repeated["include"] and not is_open:
                thought["encrypted_content"] = THOUGHT_SIGNATURE + base64.b64encode(item.text.encode()).decode()
            return thought
        name = self._request.tools.renamed.get(item.name, ToolName(item.name))
        call = {**head, "call_id": item.call_id, "name": name.name}
        if name.is_custom:
            return {"type": "custom_tool_call", **call, "input": _custom_input(item.text)}
        space = {"namespace": name.namespace} if name.namespace else {}
        return {"type": "function_call", **call, **space, "arguments": item.text}

    def _part(self, item: Item, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        if item.kind is Kind.THOUGHT:
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
