"""Text to look up drafts in, from tool results: what an agent read, in the tokens of the call that writes it back."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.drafters.copying import CopyingDrafter
from coordinator.drafters.suffix import SuffixDrafter
from coordinator.drafters.tool_result import ToolResultDrafter
from coordinator.tokenizer import Tokenizer
from coordinator.tools import tool_results
from coordinator.tools.tool_messages import Message
from coordinator.tools.tool_results import ToolResults, without_line_numbers
from paceline.client import AsyncClient
from paceline.engine.models.weights import load_model
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.coordinator.contexts import decide, make_context
from tests.services import Trio

CODE = Path(tool_results.__file__).read_text()
NUM_DRAFTS = 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(load_model("smollm2-135m", torch.bfloat16).tokenizer_files)


def numbered(text: str, template: str = "{}\t{}") -> str:
    return "\n".join(template.format(at, line) for at, line in enumerate(text.split("\n"), start=1))


@pytest.mark.parametrize("template", ["{}\t{}", "{:6d}\t{}", "{:5d}→{}", "{}: {}", "{} | {}", "{:05d}| {}"])
def test_line_numbers_are_removed(template: str) -> None:
    assert without_line_numbers(numbered(CODE, template)) == CODE
    framed = f"<file>\n{numbered(CODE, template)}\n\n(End of file - 9 lines)\n</file>"
    assert without_line_numbers(framed) == f"<file>\n{CODE}\n\n(End of file - 9 lines)\n</file>"
    # Editors cut white space at the ends of lines.
    lines = [line.rstrip() for line in numbered(CODE, template).split("\n")]
    assert without_line_numbers("\n".join(lines)) == CODE


@pytest.mark.parametrize(
    "text",
    [CODE, "", "1\ta\n2\tb", "1\ta\n3\tb\n5\tc", "2024: a good year\n2020: a bad one", "1. one\n2. two\n3. three", "1\n2\n3 4"],
    ids=["code", "nothing", "two lines", "gaps", "years", "a list", "a column"],
)  # fmt: skip
def test_other_numbers_stay(text: str) -> None:
    assert without_line_numbers(text) == text


def results(*texts: str) -> list[Message]:
    return [Message("user", "Read."), *(Message("tool", text) for text in texts), Message("user", "Write.")]


async def test_the_newest_results_have_room_first(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    [old, new] = await ToolResults(tokenizer).read(results("the old result", "the new result"), "")
    monkeypatch.setattr(tool_results, "MAX_TOKENS", len(new) + 2)
    assert await ToolResults(tokenizer).read(results("the old result", "the new result"), "") == [old[:2], new]
    monkeypatch.setattr(tool_results, "MAX_TOKENS", len(new))
    assert await ToolResults(tokenizer).read(results("the old result", "the new result", ""), "") == [new]


async def test_files_in_a_users_message_are_read(tokenizer: Tokenizer) -> None:
    async def read(*messages: Message) -> list[list[int]]:
        return await ToolResults(tokenizer).read(messages, "")

    [result] = await read(Message("tool", CODE))
    fenced = f"Change these.\n```a.py\n{CODE}\n```\n\n```\n1\n```\nBe brief."
    assert await read(Message("user", fenced)) == [result, *await read(Message("tool", "1"))]
    assert await read(Message("user", CODE)) == [result]
    # Speech, an empty block, and one that is open.
    assert await read(Message("user", "Write it.\nNow.")) == []
    assert await read(Message("assistant", CODE), Message("system", CODE)) == []
    assert await read(Message("user", "1\n2\n```\n```")) == await read(Message("tool", "1\n2\n```\n```"))


class Counting:
    """The texts that a tokenizer is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        encode = Tokenizer.encode

        def note(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
            self.seen.append(text)
            return encode(tokenizer, text, add_special_tokens)

        monkeypatch.setattr(Tokenizer, "encode", note)


async def test_a_result_is_tokenized_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    # Of two short results.
    monkeypatch.setattr(tool_results, "MAX_KEPT_BYTES", 1000)
    given = ToolResults(tokenizer)
    first = await given.read(results("one", "two"), "")
    assert await given.read(results("one", "two"), "") == first
    await given.read(results("three"), "")
    # The one that was used last is kept.
    await given.read(results("one"), "")
    assert len(counting.seen) == 3
    await given.read(results("two"), "")
    assert len(counting.seen) == 4


async def test_nothing_tells_what_another_salt_has_read(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, given = Counting(monkeypatch), ToolResults(tokenizer)
    first = await given.read(results("a secret"), "mine")
    assert await given.read(results("a secret"), "yours") == first
    assert len(counting.seen) == 2
    assert await given.read(results("a secret"), "mine") == first
    assert len(counting.seen) == 2


async def test_results_are_kept_by_their_size(tokenizer: Tokenizer) -> None:
    """Each of these is a token a character, eight times as many as are used."""
    given = ToolResults(tokenizer)
    for at in range(20):
        [tokens] = await given.read(results("\u4e00" * tool_results.MAX_CHARACTERS + str(at)), f"{at}")
        assert len(tokens) == tool_results.MAX_TOKENS
    assert given._kept.num_bytes <= 20 * 5 * tool_results.MAX_TOKENS


async def test_many_results_are_one_piece_of_work(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand short ones take a tenth of a second: not on the event loop."""
    threads: set[str] = set()
    encode = ToolResults._encode

    def note(self: ToolResults, result: str) -> Any:
        threads.add(threading.current_thread().name)
        return encode(self, result)

    monkeypatch.setattr(ToolResults, "_encode", note)
    texts = await ToolResults(tokenizer).read(results(*map(str, range(1000))), "")
    assert len(texts) == 1000
    assert threads
    assert threading.current_thread().name not in threads


async def tokens_per_forward(drafter: CopyingDrafter, tokenizer: Tokenizer, prompt: str, answer: str) -> float:
    """Simulates a model that writes `answer` without a fault."""
    context = make_context(tokenizer.encode(prompt))
    expected = tokenizer.encode(answer, add_special_tokens=False)
    num_forwards, at = 0, 0
    while at < len(expected):
        drafts = (await drafter.propose(context, NUM_DRAFTS)).tokens
        num = 0
        while num < len(drafts) and expected[at + num : at + num + 1] == drafts[num : num + 1]:
            num += 1
        decide(context, expected[at : at + num + 1])
        at += num + 1
        num_forwards += 1
    return len(expected) / num_forwards


async def test_a_file_that_was_read_is_copied_into_a_json_string(tokenizer: Tokenizer) -> None:
    call = json.dumps({"name": "write", "arguments": {"path": "a.py", "content": CODE}}, ensure_ascii=False)
    texts = await ToolResults(tokenizer).read(results(numbered(CODE)), "")
    drafters = SuffixDrafter(None), ToolResultDrafter(texts)
    without, found = [await tokens_per_forward(each, tokenizer, numbered(CODE), call) for each in drafters]
    assert found > 10
    assert found > 3 * without


async def test_an_argument_begins_like_the_newest_result(tokenizer: Tokenizer) -> None:
    drafter = ToolResultDrafter(await ToolResults(tokenizer).read(results("an old one", CODE), ""))
    context = make_context(tokenizer.encode("Write."))
    decide(context, tokenizer.encode('{"path":', add_special_tokens=False))
    assert await drafter.candidates(context, 1) == [("tool_result", 1)]
    decide(context, tokenizer.encode(' "a.py", "content":', add_special_tokens=False))
    drafts = (await drafter.propose(context, NUM_DRAFTS)).tokens
    assert len(drafts) == NUM_DRAFTS
    assert (" " + json.dumps(CODE)).startswith(tokenizer.decode_with_offsets(drafts, False)[0])
    # The path was none.
    assert (("tool_result", 1), False) in drafter.take_hits()


TOOL = {
    "type": "function",
    "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
}  # fmt: skip


async def test_look_up_text_changes_no_token(embedded_pair: Trio) -> None:
    call = {"id": "call_1", "name": "read", "arguments": "{}"}
    chat = [
        {"role": "user", "content": "Read the file, then write it."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": numbered(CODE[:400]), "tool_call_id": "call_1"},
    ]
    # A fixed length: whether an adaptive one drafts depends on times.
    suffix = SpeculationParams(drafter=Drafter.SUFFIX, num_speculative_tokens=8)
    num_proposed = 0
    async with AsyncClient(embedded_pair.address) as client:
        # Several: a short answer quotes nothing.
        for seed in range(4):
            sampling = SamplingParams(max_tokens=80, temperature=0.8, seed=seed)
            plain, drafted = await asyncio.gather(
                *(
                    client.complete(chat, sampling, each, tools=[TOOL], tool_choice="write")
                    for each in (SpeculationParams(enabled=False), suffix)
                )
            )
            assert drafted.token_ids == plain.token_ids
            assert drafted.finish is not None
            num_proposed += drafted.finish.speculation.proposed
    assert num_proposed > 0
