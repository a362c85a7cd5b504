"""What a request asks for is read once."""

import json
from collections import Counter
from typing import Any, cast

import pytest

from coordinator import prompt_reader
from coordinator.grammars import Grammars
from coordinator.policy.policies import Policies
from coordinator.request import Request, requests_of_choices
from coordinator.request_reader import RequestReader
from coordinator.tokenizer import Tokenizer
from coordinator.tools.offered_tools import Tools
from paceline.grammar import GRAMMAR_ENGINE
from paceline.rpc.generation_messages import make_request
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import model_pb2
from tests.thinking import EOS_ID, TEMPLATE, thinking_tokenizer_files

TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what is called by name."""
    counts = Counter[str]()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            counts[name if owner is not SpeculationParams else "speculation"] += 1
            return original(*arguments, **more)

        monkeypatch.setattr(owner, name, counted)

    count(SamplingParams, "__post_init__")
    count(SpeculationParams, "__post_init__")
    count(Tools, "parse")
    count(prompt_reader, "_parse_messages")
    return counts


async def read(
    sampling: SamplingParams, speculation: SpeculationParams | None, calls: Counter[str], chat_template: Any = TEMPLATE
) -> Request:
    files = thinking_tokenizer_files(has_special_marks=True)
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": chat_template}
    files["tokenizer_config.json"] = json.dumps(config).encode()
    tokenizer = Tokenizer(files)
    size = tokenizer.backend.get_vocab_size()
    grammars = Grammars(files["tokenizer.json"], size, [EOS_ID])
    policies = cast(Policies, _AnyPolicy())
    reader = RequestReader(tokenizer, grammars, policies, SpeculationParams())
    model_info = model_pb2.ModelInfo(
        vocab_size=size, max_model_len=9999, grammar_engine=GRAMMAR_ENGINE, eos_token_ids=[EOS_ID]
    )
    message = make_request([{"role": "user", "content": "Go."}], sampling, speculation, False, tools=TOOLS)
    calls.clear()
    try:
        return await reader.read(message, model_info)
    finally:
        grammars.close()


class _AnyPolicy:
    def check(self, speculation: SpeculationParams) -> None:
        pass


async def test_a_chat_is_parsed_once(calls: Counter[str]) -> None:
    request = await read(SamplingParams(), None, calls)
    assert json.dumps(request.tools.functions if request.tools else ()) == '[{"name": "f"}]'
    assert (calls["parse"], calls["_parse_messages"]) == (1, 1)


async def test_reasoning_is_opened_by_the_template_of_chats_with_tools(calls: Counter[str]) -> None:
    opened = TEMPLATE.replace("[assistant]", "[assistant]<think>\n")
    templates = [{"name": "default", "template": "{{ messages[0].content }}"}, {"name": "tool_use", "template": opened}]
    request = await read(SamplingParams(), None, calls, templates)
    assert request.opens_reasoning is True
    assert "reasoning" in request.grammar_text


async def test_parameters_are_checked_once_for_all_samples(calls: Counter[str]) -> None:
    sampling = SamplingParams(n=3, temperature=1, logit_bias={5: 1}, logprobs=1, prompt_logprobs=1)
    request = await read(sampling, SpeculationParams(draft_temperature=0.5, lenience=0.5), calls)
    samples = requests_of_choices(request)
    assert len({each.seed for each in samples}) == 3
    drawn = [each.speculation.draft_sampling(each.sampling) for each in samples]
    assert [each.temperature for each in drawn] == [0.5] * 3
    assert (calls["__post_init__"], calls["speculation"]) == (1, 1)
