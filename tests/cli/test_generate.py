"""`paceline generate` against real services: what a script reads from it."""

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.client import Client
from paceline.sampling_params import SamplingParams
from tests.services import Trio

KEYS = [
    "index", "choice", "text", "token_ids", "origins", "finish_reason", "usage", "speculation", "timing", "seed",
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
    ran = paceline(
        "generate", "say it", "--address", tiny_trio.address, "--raw", "--max-tokens", 120, "--json", min_tokens=120,
        repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, logprobs=2,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    line = json.loads(ran.out)
    penalized = SamplingParams(
        max_tokens=120, min_tokens=120, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, logprobs=2
    )
    with Client(tiny_trio.address) as client:
        expected = client.complete("say it", penalized, raw=True)
        plain = client.complete("say it", SamplingParams(max_tokens=120, min_tokens=120), raw=True)
    assert line["token_ids"] == expected.token_ids != plain.token_ids
    assert [each["logprob"] for each in line["logprobs"]] == pytest.approx([e.logprob for e in expected.logprobs])
    assert all(len(each["top_token_ids"]) == 2 for each in line["logprobs"])


def test_beams_and_their_length_penalty_are_those_of_the_client(paceline, unlike_trio: Trio) -> None:
    flags = ("--raw", "--max-tokens", 40, "--json")
    ran = paceline("generate", "t3 t9", "--address", unlike_trio.address, *flags, "--beams", 4, length_penalty=-10)
    assert ran.code == 0, ran.err
    asked = SamplingParams(max_tokens=40, beams=4, length_penalty=-10.0)
    with Client(unlike_trio.address) as client:
        expected, longer, greedy = [
            client.complete("t3 t9", each, raw=True).token_ids
            for each in (asked, replace(asked, length_penalty=10.0), SamplingParams(max_tokens=40))
        ]
    assert json.loads(ran.out)["token_ids"] == expected
    assert expected not in (longer, greedy)


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
        "--num-speculative-tokens",
        4,
    )
    assert ran.code == 0
    with Client(tiny_trio.address) as client:
        text = client.complete("once", SamplingParams(max_tokens=5, ignore_eos=True), raw=True).text
    assert ran.out == text + "\n"
    assert "accept" in ran.err


@pytest.mark.parametrize(
    ("flags", "settings", "said"),
    [
        (("--top-p", 2), {}, "top_p"),
        (("--max-tokens", 0), {}, "max_tokens"),
        (("--json",), {"logprobs": 1000}, "logprobs"),
        ((), {"logprobs": 2}, "logprobs needs --json"),
        (("--logprobs", 2), {}, "set logprobs in paceline.toml, table [generate], or $PACELINE_GENERATE_LOGPROBS"),
        (("--n", 0), {}, "n is 0; it must be in [1, 64]"),
        (("--drafter", "oracle"), {}, "drafter"),
        (
            (),
            {"draft_max": 6},
            "draft_max is 6; it must be left out unless num_speculative_tokens is adaptive or entropy",
        ),
        (
            ("--num-speculative-tokens", 4),
            {"draft_min": 2},
            "draft_min is 2; it must be left out unless num_speculative_tokens is adaptive",
        ),
        (
            ("--num-speculative-tokens", "adaptive"),
            {"entropy_beta": 0.5},
            "it must be left out unless num_speculative_tokens is entropy",
        ),
        ((), {"draft_model": "another"}, "draft_model is 'another'; it must be one of dummy:tiny"),
        (("--prompts", "nowhere.jsonl"), {}, "PROMPT and --prompts are given; give one of them"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(
    paceline, tiny_trio: Trio, flags: tuple[object, ...], settings: dict[str, object], said: str
) -> None:
    ran = paceline("generate", "x", "--address", tiny_trio.address, *flags, **settings)
    assert ran.code in (1, 2)
    assert ran.out == ""
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def stdin_of(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content))


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_without_a_prompt_or_with_a_dash_stdin_is_read(
    paceline, tiny_trio: Trio, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    flags = ("--address", tiny_trio.address, "--raw", "--max-tokens", 5, "--ignore-eos")
    wanted = paceline("generate", "on\u00e9", *flags).out
    monkeypatch.setattr(sys, "stdin", stdin_of("on\u00e9".encode()))
    assert paceline("generate", *arguments, *flags).out == wanted


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (("",), b"", "PROMPT is ''; it must be a text that is not empty"),
        ((" ",), b"", "PROMPT is ' '; it must be a text that is not empty"),
        (("\udce9",), b"", "PROMPT is '\\udce9'; it must be a text in UTF-8"),
        ((), b"\n", "the prompt on stdin is '\\n'; it must be a text that is not empty"),
        (("-",), b"caf\xe9", "the prompt on stdin is not UTF-8 text"),
    ],
)
def test_a_prompt_that_is_none_is_refused(
    paceline, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], content: bytes, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(content))
    ran = paceline("generate", "--address", "unix:/nowhere/nobody.sock", *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: {said}\n")


def test_a_terminal_without_a_prompt_is_told_what_to_give(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = os.openpty()
    with open(follower) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        ran = paceline("generate", "--address", "unix:/nowhere/nobody.sock")
    os.close(leader)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: PROMPT is missing; give a PROMPT, --prompts FILE, or a text on stdin\n"


def test_several_answers_have_headers(paceline, tiny_trio: Trio, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps("first\nprompt") + "\n" + json.dumps("words " * 40) + "\n")
    flags = ("--raw", "--max-tokens", 4, "--ignore-eos", "--temperature", 1, "--seed", 3)
    ran = paceline("generate", "--address", tiny_trio.address, "--prompts", file, "--n", 2, *flags)
    headers = [line for line in ran.out.split("\n") if line.startswith("--- ")]
    assert headers[:3] == ["--- 1: first prompt", "--- 1, sample 2: first prompt", f"--- 2: {('words ' * 10).strip()}…"]
    assert len(headers) == 4
    with Client(tiny_trio.address) as client:
        sampling = SamplingParams(max_tokens=4, ignore_eos=True, temperature=1.0, seed=3, n=2)
        texts = [each.text for each in client.complete_all("first\nprompt", sampling, raw=True)]
    assert texts[0] != texts[1]
    assert ran.out.startswith(f"{headers[0]}\n{texts[0]}\n\n{headers[1]}\n{texts[1]}\n\n{headers[2]}\n")


def test_json_has_an_object_for_each_sample(paceline, tiny_trio: Trio) -> None:
    flags = ("--max-tokens", 4, "--temperature", 1, "--n", 3, "--json")
    ran = paceline("generate", "x", "--address", tiny_trio.address, *flags, logprobs=1)
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [(each["index"], each["choice"]) for each in found] == [(0, 0), (0, 1), (0, 2)]
    assert all(len(each["logprobs"]) == len(each["token_ids"]) for each in found)


def test_colors_are_for_terminals_and_are_explained(paceline, tiny_trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = ("--drafter", "model", "--num-speculative-tokens", 4)
    flags = ("--address", tiny_trio.address, "--raw", "--max-tokens", 9, "--ignore-eos", "--color", *drafts)
    plain = paceline("generate", "x", *flags)
    assert ("\x1b[" in plain.out, plain.err) == (False, "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    forced = paceline("generate", "x", *flags)
    assert "\x1b[32m" in forced.out
    assert "accepted draft" in forced.err
    monkeypatch.setenv("NO_COLOR", "1")
    refused = paceline("generate", "x", *flags)
    assert (refused.out, refused.err) == (plain.out, "")
