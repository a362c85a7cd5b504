import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from coordinator.context import Request
from coordinator.formats import make_grammar, make_schema
from coordinator.infill import MAX_CHARACTERS_PER_TOKEN, InfillPrompts
from coordinator.policy.policies import Policies
from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.conversation import Call, Message
from coordinator.tools.quoted import QuotedResults
from coordinator.tools.tools import AUTO, NONE, Tools
from paceline.checks import require, require_at_most
from paceline.errors import CONTEXT_LENGTH_EXCEEDED, INVALID_FIELD, InvalidArgument, Unavailable
from paceline.grammar import GRAMMAR_ENGINE, Grammar, GrammarEngine
from paceline.infill import Infill
from paceline.keys import private_salt
from paceline.noise import derive_seed, fresh_seed
from paceline.rpc.messages import format_from_message, sampling_from_message, speculation_from_message
from paceline.rpc.metadata import caller
from paceline.sampling import MAX_ID_CHARACTERS, MAX_SALT_CHARACTERS, SamplingParams
from paceline.speculation import SpeculationParams
from paceline.v1 import generation_pb2, model_pb2

MAX_MESSAGES = 4096
# Roles of requests -> roles of chat templates.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class RequestReader:
    """Validates and tokenizes requests. Raises InvalidArgument naming the field and its range."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        grammars: GrammarEngine,
        policies: Policies,
        defaults: SpeculationParams,
        shares_between_keys: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._chats = Chats(tokenizer)
        self._quoted = QuotedResults(tokenizer)
        self._infills = InfillPrompts(tokenizer)
        self._policies = policies
        self._defaults = defaults
        self._shares_between_keys = shares_between_keys

    async def read(self, message: generation_pb2.GenerateRequest, card: model_pb2.ModelCard) -> Request:
        require_at_most(MAX_ID_CHARACTERS, len(message.request_id), "request_id", "characters")
        require_at_most(MAX_SALT_CHARACTERS, len(message.cache_salt), "cache_salt", "characters")
        sampling = sampling_from_message(message.sampling)
        kind = message.WhichOneof("prompt")
        more_ends = self._infills.ending_ids if kind == "infill" else []
        eos_token_ids = tuple(dict.fromkeys([*card.eos_token_ids, *more_ends]))
        sampling.check_token_ids(card.vocab_size, () if sampling.ignore_eos else eos_token_ids)
        speculation = self._defaults.overruled_by(speculation_from_message(message.speculation), sampling)
        if sampling.seed is None:
            sampling = replace(sampling, seed=fresh_seed())
        speculation.check(sampling)
        require(not message.trace or sampling.beams == 1, "trace", message.trace, "left out with beams")
        lacks_states = 0 < card.num_states < sampling.beams
        require(not lacks_states, "beams", sampling.beams, f"at most {card.num_states}, the target's recurrent states")
        self._policies.check(speculation)
        prompt = await self.read_prompt(message, card)
        require(len(prompt) >= 1, "prompt", "0 tokens", "at least one token")
        _check_prompt_length("prompt", len(prompt), card, reserved=min(1, sampling.max_tokens))
        is_chat = kind == "chat"
        opens_thought = self._chats.opens_thought(prompt) if is_chat else None
        tools, grammar_text, grammar = await self._read_grammar(message, sampling, card, opens_thought)
        return Request(
            request_id=message.request_id,
            prompt=prompt,
            sampling=sampling,
            speculation=speculation,
            eos_token_ids=eos_token_ids,
            max_length=card.max_model_len,
            vocab_size=card.vocab_size,
            prediction=await self._read_prediction(message, card),
            is_chat=is_chat,
            cache_salt=self._salt(message.cache_salt),
            trace=message.trace,
            grammar=grammar,
            grammar_text=grammar_text,
            tools=tools,
            opens_thought=opens_thought,
            chats=self._chats,
            quoted=await self._quoted.read(_parse_messages(message.chat)) if tools and speculation.enabled else [],
        )

    def _salt(self, given: str) -> str:
        owner = caller.get()
        return given if owner is None or self._shares_between_keys else private_salt(owner, given)

    async def _read_grammar(
        self,
        message: generation_pb2.GenerateRequest,
        sampling: SamplingParams,
        card: model_pb2.ModelCard,
        opens_thought: bool | None,
    ) -> tuple[Tools | None, str, Grammar | None]:
        """Returns the tools that may be called, and the grammar of the format or of calls."""
        wanted, tools = format_from_message(message.format), _parse_tools(message.chat)
        if tools is not None and tools.choice != NONE:
            is_json = wanted is None or wanted.json_object or bool(wanted.json_schema)
            require(is_json, "format", "not JSON", "a JSON format beside tools, or left out")
            answer = None if wanted is None else make_schema(wanted)
            text = await self._tokenizer.run(lambda: self._chats.call_grammar(tools, answer), len(message.chat.tools))
            field = "tools"
        elif wanted is not None:
            text, field = make_grammar(wanted), wanted.kind
        else:
            return None, "", None
        text = self._chats.with_thought(text, opens_thought, card.eos_token_ids)
        return (tools if field == "tools" else None), text, await self._compile(field, text, sampling, card)

    async def _compile(self, field: str, text: str, sampling: SamplingParams, card: model_pb2.ModelCard) -> Grammar:
        """Raises InvalidArgument naming `field`, and Unavailable if the target server can't follow."""
        require(not sampling.ignore_eos, "ignore_eos", True, f"left out with {field}")
        if card.grammar_engine != GRAMMAR_ENGINE:
            theirs = card.grammar_engine or "none"
            raise Unavailable(f"formats need {GRAMMAR_ENGINE} on the target server too; it has {theirs}")
        grammar = self._grammars.grammar(text)
        try:
            # Shielded: others may wait for the same grammar.
            await asyncio.shield(asyncio.wrap_future(grammar.compiling))
        except InvalidArgument as error:
            raise error.renamed(field) from None
        return grammar

    async def read_prompt(
        self,
        message: generation_pb2.GenerateRequest | generation_pb2.TokenizeRequest,
        card: model_pb2.ModelCard,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Refuses text that is far too long without tokenizing it."""
        match message.WhichOneof("prompt"):
            case "text":
                return await self._encode("text", message.text, card, add_special_tokens)
            case "chat":
                return await self._encode_chat(message.chat, card, add_generation_prompt)
            case "token_ids":
                _check_prompt_length("prompt", len(message.token_ids.ids), card, reserved=0)
                return _checked_ids("token_ids", message.token_ids.ids, card)
            case "infill":
                return await self._encode_infill(message.infill, card)
            case _:
                raise InvalidArgument.of_value("prompt", None, "text, chat, token_ids or infill")

    def read_ids(self, message: generation_pb2.DetokenizeRequest, card: model_pb2.ModelCard) -> list[int]:
        require_at_most(card.max_model_len, len(message.token_ids), "token_ids", "ids")
        return _checked_ids("token_ids", message.token_ids, card)

    async def _read_prediction(self, message: generation_pb2.GenerateRequest, card: model_pb2.ModelCard) -> list[int]:
        if message.WhichOneof("prediction") == "prediction_text":
            ids = await self._encode("prediction", message.prediction_text, card, add_special_tokens=False)
        else:
            _check_prompt_length("prediction", len(message.prediction_token_ids.ids), card)
            ids = _checked_ids("prediction", message.prediction_token_ids.ids, card)
        _check_prompt_length("prediction", len(ids), card)
        return ids

    async def _encode(self, name: str, text: str, card: model_pb2.ModelCard, add_special_tokens: bool) -> list[int]:
        reason = CONTEXT_LENGTH_EXCEEDED if name == "text" else INVALID_FIELD
        require_at_most(_max_characters(card), len(text), name, "characters", reason)
        if not text:
            return []
        return await self._tokenizer.run(lambda: self._tokenizer.encode(text, add_special_tokens), len(text))

    async def _encode_chat(
        self, chat: generation_pb2.Chat, card: model_pb2.ModelCard, add_generation_prompt: bool
    ) -> list[int]:
        messages = _parse_messages(chat)
        num_characters = sum(len(each.role) + len(each.content) for each in messages)
        num_characters += sum(len(call.name) + len(call.arguments) for each in messages for call in each.calls)
        num_characters += sum(len(each.reasoning) for each in messages)
        num_characters += len(chat.template_options) + len(chat.tools)
        require_at_most(_max_characters(card), num_characters, "chat.messages", "characters", CONTEXT_LENGTH_EXCEEDED)
        options, tools = _parse_template_options(chat.template_options), _parse_tools(chat)
        require(tools is None or "tools" not in options, "chat.template_options", "tools", "left out beside tools")

        def encode() -> list[int]:
            plain, more = self._chats.template_input(messages, tools)
            return self._tokenizer.encode_chat(plain, options | more, add_generation_prompt, chat.parse_special_tokens)

        return await self._tokenizer.run(encode, num_characters)

    async def _encode_infill(self, message: generation_pb2.Infill, card: model_pb2.ModelCard) -> list[int]:
        files = tuple((each.name, each.text) for each in message.extra)
        infill = Infill(message.prefix, message.suffix, files, message.prompt)
        return await self._tokenizer.run(lambda: self._infills.encode(infill, card.max_model_len), message.ByteSize())


def requests_of_choices(request: Request) -> list[Request]:
    """Gives each sample its own seed; only the first scores the prompt."""
    rest = replace(request.sampling, prompt_logprobs=None)
    return [request] + [
        replace(request, sampling=replace(rest, seed=derive_seed(request.seed, index)))
        for index in range(1, request.sampling.n)
    ]


def _parse_tools(chat: generation_pb2.Chat) -> Tools | None:
    """Raises InvalidArgument."""
    if not chat.tools:
        return None
    is_parallel = chat.parallel_tool_calls if chat.HasField("parallel_tool_calls") else True
    return Tools.parse(chat.tools, chat.tool_choice or AUTO, is_parallel)


def _parse_messages(chat: generation_pb2.Chat) -> list[Message]:
    require(len(chat.messages) > 0, "chat.messages", "empty", "at least one message")
    require_at_most(MAX_MESSAGES, len(chat.messages), "chat.messages", "messages")
    for message in chat.messages:
        require(message.role in ROLES, "chat.messages.role", message.role, "one of " + ", ".join(ROLES))
    return [
        Message(
            ROLES[message.role],
            message.content,
            tuple(Call(call.id, call.name, call.arguments) for call in message.tool_calls),
            message.tool_call_id,
            message.name,
            message.reasoning,
        )
        for message in chat.messages
    ]


def _parse_template_options(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        options = json.loads(text)
        # JSON can contain a lone surrogate; UTF-8 can't.
        json.dumps(options, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        options = None
    require(isinstance(options, dict), "chat.template_options", text, "a JSON object")
    return dict(options)


def _checked_ids(name: str, ids: Iterable[int], card: model_pb2.ModelCard) -> list[int]:
    worst = max(ids, default=0)
    require(worst < card.vocab_size, name, worst, f"in [0, {card.vocab_size})")
    return list(ids)


def _check_prompt_length(name: str, num_tokens: int, card: model_pb2.ModelCard, reserved: int = 1) -> None:
    longest = card.max_model_len - reserved
    reason = CONTEXT_LENGTH_EXCEEDED if name == "prompt" else INVALID_FIELD
    require_at_most(longest, num_tokens, name, "tokens", reason)


def _max_characters(card: model_pb2.ModelCard) -> int:
    return card.max_model_len * MAX_CHARACTERS_PER_TOKEN
