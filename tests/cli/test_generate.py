"""`paceline generate` against real services: what a script reads from it."""

import json
from pathlib import Path

import pytest

from paceline.client import Client
from paceline.sampling import SamplingParams
from tests.services import Trio

KEYS = [
    "index", "text", "token_ids", "origins", "finish_reason", "usage", "speculation", "timing", "seed",
]  # fmt: skip


def test_json_gives_one_line_a_prompt_in_the_order_given(paceline, tiny_trio: Trio, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"turns": ["two", "never sent"]}\n\n{"prompt": "three"}\n')
    flags = ("--raw", "--concurrency", 3, "--max-tokens", 7, "--ignore-eos", "--json")
    ran = paceline("generate", "--address", tiny_trio.address, "--prompts", file, *flags)
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    with Client(tiny_trio.address) as client:
        params = SamplingParams(max_tokens=7, ignore_eos=True)
        expected = [client.complete(prompt, params, raw=True).token_ids for prompt in ("one", "two", "three")]
    assert [line["token_ids"] for line in lines] == expected
    for line in lines:
        assert list(line) == KEYS
        assert len(line["origins"]) == len(line["token_ids"]) == line["usage"]["completion_tokens"] == 7


def test_penalties_and_logprobs_are_those_of_the_client(paceline, tiny_trio: Trio) -> None:
    flags = ("--repetition-penalty", 1.5, "--presence-penalty", 0.5, "--frequency-penalty", 0.25)
    ran = paceline(
        "generate", "say it", "--address", tiny_trio.address, "--raw", "--max-tokens", 120, "--min-tokens", 120,
        *flags, "--logprobs", 2, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    line = json.loads(ran.out)
    penalised = SamplingParams(
        max_tokens=120, min_tokens=120, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, logprobs=2
    )
    with Client(tiny_trio.address) as client:
        expected = client.complete("say it", penalised, raw=True)
        plain = client.complete("say it", SamplingParams(max_tokens=120, min_tokens=120), raw=True)
    assert line["token_ids"] == expected.token_ids != plain.token_ids
    assert [each["logprob"] for each in line["logprobs"]] == pytest.approx([e.logprob for e in expected.logprobs])
    assert all(len(each["top_token_ids"]) == 2 for each in line["logprobs"])


def test_text_goes_to_stdout_and_figures_to_stderr(paceline, tiny_trio: Trio) -> None:
    ran = paceline(
        "generate",
        "once",
        "--address",
        tiny_trio.address,
        "--raw",
        "--max-tokens",
        5,
        "--ignore-eos",
        "--stats",
        "--draft-tokens",
        4,
    )
    assert ran.code == 0
    with Client(tiny_trio.address) as client:
        text = client.complete("once", SamplingParams(max_tokens=5, ignore_eos=True), raw=True).text
    assert ran.out == text + "\n"
    assert "accept" in ran.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--top-p", 0), "top_p"),
        (("--max-tokens", 0), "max_tokens"),
        (("--logprobs", 1000), "logprobs"),
        (("--drafter", "oracle"), "drafter"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl: no such file"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(paceline, tiny_trio: Trio, flags: tuple[object, ...], said: str) -> None:
    ran = paceline("generate", "x", "--address", tiny_trio.address, *flags)
    assert ran.code in (1, 2)
    assert ran.out == ""
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1
