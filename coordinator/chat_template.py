"""Tokenizes conversations through the model's chat template.

Control tokens spelled in a message, such as `<|im_end|>`, could forge a turn, so they become plain text.
"""

import inspect
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerFast

from coordinator.control_tokens import ControlTokens
from paceline.checks import require
from paceline.errors import InvalidArgument

# Arguments of apply_chat_template that a request's template options can't set.
RESERVED_OPTIONS = {"messages", *inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters} - {
    "tools",
    "documents",
}
# Conversations that show which tokens a template writes around messages. It may refuse some.
_PLAIN = (("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user",))
# Calls in messages are nested.
Messages = list[dict[str, Any]]


class ChatTemplate:
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    @property
    def source(self) -> str | None:
        """Returns the template, or the default one of several."""
        template = self._tokenizer.chat_template
        return template.get("default") if isinstance(template, dict) else template

    def encode(
        self, messages: Messages, options: dict[str, Any], add_generation_prompt: bool, parse_special_tokens: bool
    ) -> list[int]:
        """Tokenizes a conversation. `parse_special_tokens`: it may spell control tokens. Raises InvalidArgument."""
        reserved = sorted(RESERVED_OPTIONS.intersection(options))
        require(not reserved, "chat.template_options", ", ".join(reserved), "options that the model's template reads")
        if self._tokenizer.chat_template is None:
            raise InvalidArgument("chat", "is not supported: this model has no chat template; send text instead")
        if parse_special_tokens or self._control_tokens is None:
            return self._tokenize(self._render(messages, options, add_generation_prompt))
        return self._encode_literally(self._control_tokens, messages, options, add_generation_prompt)

    def render(self, messages: Messages, options: dict[str, Any]) -> str:
        """Raises InvalidArgument."""
        return self._render(messages, options, add_generation_prompt=False)

    def _encode_literally(
        self, control_tokens: ControlTokens, messages: Messages, options: dict[str, Any], add_generation_prompt: bool
    ) -> list[int]:
        try:
            # Roles are validated, and some templates make control tokens of them.
            marked = [control_tokens.mark(message) | {"role": message["role"]} for message in messages]
        except RecursionError:
            raise InvalidArgument("chat.messages", "are too deep; they must have fewer levels") from None
        try:
            options = {name: control_tokens.mark(value) for name, value in options.items()}
        except RecursionError:
            raise InvalidArgument("chat.template_options", "is too deep; it must have fewer levels") from None
        try:
            rendered = self._render(marked, options, add_generation_prompt)
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

    def _try_to_render(self, roles: tuple[str, ...]) -> str:
        try:
            return self._render([{"role": role, "content": "x"} for role in roles], {}, True)
        except InvalidArgument:
            return ""

    def _render(self, messages: Messages, options: dict[str, Any], add_generation_prompt: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=False, **options
            )
        except Exception as error:  # whatever the template raises, jinja2 errors among them
            raise InvalidArgument("chat.messages", f"are refused by the model's chat template: {error}") from error
        return text

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids
