"""Every field that OpenAI's and Anthropic's packages can send is in a list: taken, refused by name, or ignored."""

from collections.abc import Collection
from typing import Any, NamedTuple

import pytest
from anthropic.types import (
    document_block_param,
    text_block_param,
    tool_param,
    tool_result_block_param,
    tool_use_block_param,
)
from anthropic.types import message_create_params as messages_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import function_tool_param, response_create_params

from gateway.dialects import chat, completions, messages, responses, responses_input


class Walked(NamedTuple):
    """A type of an SDK, and the names that our parser knows there."""

    params: Any
    known: Collection[str]


MESSAGES = (*messages.FIELDS.known, "thread")
BLOCK = ("type", *messages.BLOCK_IGNORED)
TYPES: dict[str, Walked] = {
    "chat": Walked(chat_params.CompletionCreateParamsBase, chat.FIELDS.known),
    "completions": Walked(text_params.CompletionCreateParamsBase, completions.FIELDS.known),
    "responses": Walked(response_create_params.ResponseCreateParamsBase, responses.FIELDS.known),
    "a function of responses": Walked(function_tool_param.FunctionToolParam, responses_input.FUNCTION.known),
    "messages": Walked(messages_params.MessageCreateParamsBase, MESSAGES),
    "beta messages": Walked(beta_params.MessageCreateParamsBase, MESSAGES),
    "a tool of messages": Walked(tool_param.ToolParam, messages.TOOL.known),
    "a text": Walked(text_block_param.TextBlockParam, (*BLOCK, "text")),
    "a document": Walked(document_block_param.DocumentBlockParam, (*BLOCK, "source", "title", "context")),
    "a result": Walked(tool_result_block_param.ToolResultBlockParam, (*BLOCK, "tool_use_id", "content", "is_error")),
    "a call": Walked(tool_use_block_param.ToolUseBlockParam, (*BLOCK, "id", "name", "input")),
}


@pytest.mark.parametrize("name", TYPES)
def test_every_field_of_an_sdk_is_in_a_list(name: str) -> None:
    params, known = TYPES[name]
    fields = params.__annotations__
    assert fields, "the package has moved its types"
    assert not fields.keys() - set(known)
