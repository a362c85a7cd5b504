from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from coordinator.chat_template import CLOSED, CONTINUED, NEXT_TURN
from coordinator.infill import MAX_CHARACTERS_PER_TOKEN, InfillPrompts
from coordinator.json_text import load_json
from coordinator.tokenizer import TEXT_CHARACTERS, Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import AUTO, Tools
from coordinator.tools.tool_messages import Call, Message
from paceline.chats import ASSISTANT, MAX_MESSAGES, MAX_PARTS, ROLES
from paceline.checks import require, require_at_most
from paceline.errors import CONTEXT_LENGTH_EXCEEDED, INVALID_FIELD, InvalidArgument
from paceline.infill_prompt import Infill
from paceline.v1 import generation_pb2, model_pb2


class Prompt(NamedTuple):
    """A prompt's tokens, and what it was made of if it is a chat."""

    token_ids: list[int]
    messages: Sequence[Message] = ()
    tools: Tools | None = None


class PromptReader:
    """Validates and tokenizes prompts and predictions. Raises InvalidArgument naming the field and its range."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.chats = Chats(tokenizer)
        self._tokenizer = tokenizer
        self._infills = InfillPrompts(tokenizer)

    async def read(
        self,
        message: generation_pb2.GenerateRequest | generation_pb2.TokenizeRequest,
        model_info: model_pb2.ModelInfo,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
    ) -> Prompt:
        """Refuses text that is far too long without tokenizing it."""
        match message.WhichOneof("prompt"):
            case "text":
                return Prompt(await self._encode("text", message.text, model_info, add_special_tokens))
            case "chat":
                return await self._encode_chat(message.chat, model_info, add_generation_prompt)
            case "token_ids":
                check_length("prompt", len(message.token_ids.ids), model_info, reserved=0)
                return Prompt(_checked_ids("token_ids", message.token_ids.ids, model_info))
            case "infill":
                return Prompt(await self._encode_infill(message.infill, model_info))
            case _:
                raise InvalidArgument.of_value("prompt", None, "text, chat, token_ids or infill")

    async def read_prediction(
        self, message: generation_pb2.GenerateRequest, model_info: model_pb2.ModelInfo
    ) -> list[int]:
        if message.WhichOneof("prediction") == "prediction_text":
            ids = await self._encode("prediction", message.prediction_text, model_info, add_special_tokens=False)
        else:
            check_length("prediction", len(message.prediction_token_ids.ids), model_info)
            ids = _checked_ids("prediction", message.prediction_token_ids.ids, model_info)
        check_length("prediction", len(ids), model_info)
        return ids

    def read_ids(self, message: generation_pb2.DetokenizeRequest, model_info: model_pb2.ModelInfo) -> list[int]:
        require_at_most(model_info.max_model_len, len(message.token_ids), "token_ids", "ids")
        return _checked_ids("token_ids", message.token_ids, model_info)

    def ending_ids(self, message: generation_pb2.GenerateRequest) -> list[int]:
        """Returns the ids that end this prompt's text besides the model's own."""
        return self._infills.ending_ids if message.WhichOneof("prompt") == "infill" else []

    async def _encode(
        self, name: str, text: str, model_info: model_pb2.ModelInfo, add_special_tokens: bool
    ) -> list[int]:
        reason = CONTEXT_LENGTH_EXCEEDED if name == "text" else INVALID_FIELD
        require_at_most(_max_characters(model_info), len(text), name, "characters", reason)
        if not text:
            return []
        return await self._tokenizer.run(lambda: self._tokenizer.encode(text, add_special_tokens), len(text))

    async def _encode_chat(
        self, chat: generation_pb2.Chat, model_info: model_pb2.ModelInfo, add_generation_prompt: bool
    ) -> Prompt:
        messages = _parse_messages(chat)
        calls = [call for each in messages for call in each.calls]
        num_characters = sum(len(each.role) + len(each.content) + len(each.reasoning) for each in messages)
        num_characters += sum(len(call.name) + len(call.arguments) for call in calls)
        num_characters += len(chat.template_options) + len(chat.tools)
        require_at_most(
            _max_characters(model_info), num_characters, "chat.messages", "characters", CONTEXT_LENGTH_EXCEEDED
        )

        def encode() -> Prompt:
            options, tools = _parse_template_options(chat.template_options), _parse_tools(chat)
            now = _parse_time(chat.template_time)
            require(tools is None or "tools" not in options, "chat.template_options", "tools", "left out beside tools")
            plain, more = self.chats.template_input(messages, tools)
            ending = CONTINUED if messages[-1].is_prefix else NEXT_TURN if add_generation_prompt else CLOSED
            ids = self._tokenizer.encode_chat(plain, options | more, ending, chat.parse_special_tokens, now)
            return Prompt(ids, messages, tools)

        return await self._tokenizer.run(encode, num_characters + (len(messages) + len(calls)) * TEXT_CHARACTERS)

    async def _encode_infill(self, message: generation_pb2.Infill, model_info: model_pb2.ModelInfo) -> list[int]:
        require_at_most(MAX_PARTS, len(message.extra), "infill.extra", "files")
        files = tuple((each.name, each.text) for each in message.extra)
        infill = Infill(message.prefix, message.suffix, files, message.prompt)
        cost = message.ByteSize() + len(files) * TEXT_CHARACTERS
        return await self._tokenizer.run(lambda: self._infills.encode(infill, model_info.max_model_len), cost)


def _parse_tools(chat: generation_pb2.Chat) -> Tools | None:
    """Raises InvalidArgument."""
    if not chat.tools:
        return None
    is_parallel = chat.parallel_tool_calls if chat.HasField("parallel_tool_calls") else True
    return Tools.parse(chat.tools, chat.tool_choice or AUTO, is_parallel)


def _parse_messages(chat: generation_pb2.Chat) -> list[Message]:
    require(len(chat.messages) > 0, "chat.messages", "empty", "at least one message")
    require_at_most(MAX_MESSAGES, len(chat.messages), "chat.messages", "messages")
    num_calls = sum(len(message.tool_calls) for message in chat.messages)
    require_at_most(MAX_PARTS, num_calls, "chat.messages.tool_calls", "calls")
    for message in chat.messages:
        require(message.role in ROLES, "chat.messages.role", message.role, "one of " + ", ".join(ROLES))
    for at, message in enumerate(chat.messages):
        if message.prefix:
            can_go_on = at == len(chat.messages) - 1 and message.role == ASSISTANT and not message.tool_calls
            allowed = "left out, unless of the assistant's last message, with content and without calls"
            require(can_go_on and bool(message.content.strip()), f"chat.messages[{at}].prefix", True, allowed)
    return [
        Message(
            ROLES[message.role],
            message.content,
            tuple(Call(call.id, call.name, call.arguments) for call in message.tool_calls),
            message.tool_call_id,
            message.name,
            message.reasoning,
            message.prefix,
        )
        for message in chat.messages
    ]


def _parse_template_options(text: str) -> dict[str, Any]:
    options = load_json(text) if text else {}
    require(isinstance(options, dict), "chat.template_options", text, "a JSON object")
    return dict(options)


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidArgument.of_value(
            "chat.template_time", text, "a time in ISO 8601, such as 2026-01-31T23:59:59"
        ) from None


def _checked_ids(name: str, ids: Iterable[int], model_info: model_pb2.ModelInfo) -> list[int]:
    worst = max(ids, default=0)
    require(worst < model_info.vocab_size, name, worst, f"in [0, {model_info.vocab_size})")
    return list(ids)


def check_length(name: str, num_tokens: int, model_info: model_pb2.ModelInfo, reserved: int = 1) -> None:
    longest = model_info.max_model_len - reserved
    reason = CONTEXT_LENGTH_EXCEEDED if name == "prompt" else INVALID_FIELD
    require_at_most(longest, num_tokens, name, "tokens", reason)


def _max_characters(model_info: model_pb2.ModelInfo) -> int:
    return model_info.max_model_len * MAX_CHARACTERS_PER_TOKEN
