"""Tokenizes conversations through the model's chat template.

Control tokens spelled in a message, such as `<|im_end|>`, could forge a turn, so they become plain text.
"""

import inspect
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

from coordinator.control_tokens import ControlTokens, encode_text
from coordinator.reasoning_marks import ReasoningMarks, find_marks, splits
from paceline.chats import EFFORTS
from paceline.checks import require
from paceline.errors import InvalidArgument

# Arguments of apply_chat_template that a request's template options can't set.
RESERVED_OPTIONS = {"messages", *inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters} - {
    "tools",
    "documents",
}
# Conversations that show which tokens a template writes around messages. It may refuse some.
_PLAIN = (("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user",))
# How a rendered conversation ends: as it is, with the opening of the assistant's turn, or inside the last message.
Ending = Mapping[str, bool]
CLOSED: Ending = MappingProxyType({})
NEXT_TURN: Ending = MappingProxyType({"add_generation_prompt": True})
CONTINUED: Ending = MappingProxyType({"continue_final_message": True})
# Calls in messages are nested.
Messages = list[dict[str, Any]]
# What `strftime_now` tells the template that is rendered here: the request's time, so that a request that is repeated, maybe
# elsewhere and on the next day, has the same prompt.
_now: ContextVar[datetime] = ContextVar("now")
# For what only looks at the template.
ANY_TIME = datetime(2000, 1, 1)
_EFFORT = "reasoning_effort"
# A chat that offers tools may have another template.
_TOOLS = {"tools": [{"type": "function", "function": {"name": "x", "description": "x", "parameters": {}}}]}
_PROBE = "paceline probe"
# For each role a chat that shows whether its content comes out.
_CALL = {"id": "paceline0", "type": "function", "function": {"name": "probe", "arguments": {}}}
_PROBES: dict[str, Messages] = {
    "user": [],
    "system": [],
    "assistant": [{"role": "user", "content": "x"}],
    "tool": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [_CALL]}],
}


class ChatTemplate:
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        templates = tokenizer.chat_template
        if isinstance(templates, dict) and templates and "default" not in templates:
            tokenizer.chat_template = {**templates, "default": next(iter(templates.values()))}

    @property
    def source(self) -> str | None:
        """Returns the template, or the default one of several."""
        template = self._tokenizer.chat_template
        return template.get("default") if isinstance(template, dict) else template

    @property
    def source_with_tools(self) -> str | None:
        """Returns the template that is rendered with tools."""
        template = self._tokenizer.chat_template
        return template.get("tool_use", self.source) if isinstance(template, dict) else template

    def encode(
        self, messages: Messages, options: dict[str, Any], ending: Ending, parse_special_tokens: bool, now: datetime
    ) -> list[int]:
        """Tokenizes a conversation. `parse_special_tokens`: it may spell control tokens. Raises InvalidArgument."""
        reserved = sorted(RESERVED_OPTIONS.intersection(options))
        require(not reserved, "chat.template_options", ", ".join(reserved), "options that the model's template reads")
        if self._tokenizer.chat_template is None:
            raise InvalidArgument("chat", "is not supported: this model has no chat template; send text instead")
        if parse_special_tokens or self._control_tokens is None:
            return self._tokenize(self._render(messages, options, ending, now))
        return self._encode_literally(self._control_tokens, messages, options, ending, now)

    def render(self, messages: Messages, options: dict[str, Any]) -> str:
        """Raises InvalidArgument."""
        return self._render(messages, options, CLOSED)

    @cached_property
    def refused_efforts(self) -> tuple[str, ...]:
        """Returns the values of `reasoning_effort` that the template refuses."""
        if _EFFORT not in (self.source or "") or not self._try_to_render(("user",)):
            return ()
        return tuple(each for each in EFFORTS if not self._try_to_render(("user",), {_EFFORT: each}))

    @cached_property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """Returns the texts around reasoning, if the template has any."""
        return self._find_marks(self.source, {})

    @cached_property
    def reasoning_marks_with_tools(self) -> ReasoningMarks | None:
        """Returns the reasoning marks of the template that is rendered with tools."""
        source = self.source_with_tools
        return self.reasoning_marks if source == self.source else self._find_marks(source, _TOOLS)

    def _find_marks(self, source: str | None, more: dict[str, Any]) -> ReasoningMarks | None:
        def render(messages: Messages, options: dict[str, Any], opens_turn: bool) -> str:
            return self._render(messages, options | more, NEXT_TURN if opens_turn else CLOSED)

        return None if source is None else find_marks(render, source)

    def _encode_literally(
        self, control_tokens: ControlTokens, messages: Messages, options: dict[str, Any], ending: Ending, now: datetime
    ) -> list[int]:
        def mark(messages: Messages) -> Messages:
            # Roles are validated, and some templates make control tokens of them.
            return [control_tokens.mark(message) | {"role": message["role"]} for message in messages]

        try:
            marked = mark(messages)
        except RecursionError:
            raise InvalidArgument("chat.messages", "are too deep; they must have fewer levels") from None
        try:
            marked_options = {name: control_tokens.mark(value) for name, value in options.items()}
        except RecursionError:
            raise InvalidArgument("chat.template_options", "is too deep; it must have fewer levels") from None
        try:
            rendered = self._render(marked, marked_options, ending, now)
            # Templates look for reasoning's end in the content, and a mark would hide it.
            marks = self.reasoning_marks_with_tools if options.get("tools") else self.reasoning_marks
            if marks is not None and (split := splits(messages, marks)):
                plain = self._render(messages, options, ending, now)
                again = (self._render(mark(each), marked_options, ending, now) for each in split)
                rendered = next((each for each in again if plain == control_tokens.unmark(each)), rendered)
        except InvalidArgument as error:
            raise InvalidArgument(error.field, control_tokens.unmark(error.problem)) from None
        text, templates = control_tokens.unmark(rendered), control_tokens.spelled(rendered)
        if templates == control_tokens.spelled(text):
            ids = self._tokenize(text)
            # The tokenizer's normalizer may turn another spelling into a control token.
            if templates == control_tokens.among(ids):
                return ids
        return control_tokens.encode(rendered)

    @cached_property
    def _control_tokens(self) -> ControlTokens | None:
        """Includes added tokens that mark turns. Others, such as `<tool_call>`, may be part of a message."""
        added = self._tokenizer.backend_tokenizer.get_added_tokens_decoder()
        written = "\n".join(map(self._try_to_render, _PLAIN))
        ids = [
            token_id
            for token_id, token in added.items()
            if (token.special or str(token) in written) and len(str(token).strip()) > 1
        ]
        return ControlTokens(self._tokenizer.backend_tokenizer, ids) if ids else None

    def _try_to_render(self, roles: tuple[str, ...], options: dict[str, Any] | None = None) -> str:
        """Returns "" if the template refuses."""
        try:
            return self._render([{"role": role, "content": "x"} for role in roles], options or {}, NEXT_TURN)
        except InvalidArgument:
            return ""

    @cached_property
    def _roles_in_parts(self) -> frozenset[str]:
        """Returns the roles whose content comes out as a list of parts only: the template iterates over it."""
        found: set[str] = set()
        for role, before in _PROBES.items():
            texts = []
            for roles in (found, {*found, role}):
                # Gemma's has the system message in the user's.
                after = [{"role": "user", "content": "x"}] if role == "system" else []
                chat = [*before, {"role": role, "content": _PROBE}, *after]
                try:
                    texts.append(self._apply(_in_parts(chat, roles), {}, CLOSED))
                except InvalidArgument:
                    texts.append("")
            if _PROBE in texts[1] and _PROBE not in texts[0]:
                found.add(role)
        return frozenset(found)

    def _render(self, messages: Messages, options: dict[str, Any], ending: Ending, now: datetime = ANY_TIME) -> str:
        return self._apply(_in_parts(messages, self._roles_in_parts), options, ending, now)

    def _apply(self, messages: Messages, options: dict[str, Any], ending: Ending, now: datetime = ANY_TIME) -> str:
        try:
            return self._apply_once(messages, options, ending, now)
        except InvalidArgument:
            if ending != CONTINUED or len(messages) < 2:
                raise
            # The library looks for the last message in the text, which templates may rewrite or refuse: here it follows the
            # opening of a turn.
            return self._apply_once(messages[:-1], options, NEXT_TURN, now) + _text_of(messages[-1])

    def _apply_once(self, messages: Messages, options: dict[str, Any], ending: Ending, now: datetime) -> str:
        token = _now.set(now)
        try:
            # Compiled once: `apply_chat_template` renders this object. Arguments that can be called never reach a template.
            template = self._tokenizer.get_chat_template(tools=options.get("tools"))
            _compile_jinja_template(template).globals["strftime_now"] = _strftime_now
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **ending, **options)
        except Exception as error:  # whatever the template raises, jinja2 errors among them
            raise InvalidArgument("chat.messages", f"are refused by the model's chat template: {error}") from error
        finally:
            _now.reset(token)
        return text

    def _tokenize(self, text: str) -> list[int]:
        return encode_text(self._tokenizer.backend_tokenizer, text)


def _strftime_now(format: str) -> str:
    return _now.get().strftime(format)


def _in_parts(messages: Messages, roles: Collection[str]) -> Messages:
    return [
        each | {"content": [{"type": "text", "text": content}]}
        if each["role"] in roles and isinstance(content := each.get("content"), str)
        else each
        for each in messages
    ]


def _text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
