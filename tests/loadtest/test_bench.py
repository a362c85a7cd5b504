"""`paceline bench` through the three real services, and what it says to bad usage."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.client import AsyncClient
from tests.cli.conftest import Ran
from tests.services import Trio

Paceline = Callable[..., Ran]


def test_a_comparison_counts_what_was_asked_and_shows_what_speculation_did(
    paceline: Paceline, tiny_trio: Trio, tmp_path: Path
) -> None:
    files = ("--json", tmp_path / "found.json", "--html", tmp_path / "found.html")
    load = ("--concurrency", 2, "--requests", 10, "--synthetic", "20:9", "--compare", "off,model:3", "--slo", "e2e=1e6")
    ran = paceline("bench", "--address", tiny_trio.address, *load, *files)
    assert ran.code == 0, ran.err
    (point,) = json.loads((tmp_path / "found.json").read_text())["points"]
    off, model = point["variants"]
    for variant in (off, model):
        assert (variant["requests"], variant["succeeded"], variant["failures"]) == (10, 10, {})
        assert sorted(record["index"] for record in variant["records"]) == list(range(10))
        assert (variant["prompt_tokens"], variant["output_tokens"]) == (200, 90)
        assert all(record["tokens"] == 9 for record in variant["records"])
        assert variant["goodput"]["share"] == 1.0
        assert 0 < variant["ttft_ms"]["p50"] <= variant["e2e_ms"]["p50"]
    assert (off["acceptance_rate"], off["mean_acceptance_length"], off["round_ms"]["draft"]) == (None, 1.0, 0.0)
    # The same model drafts: 1 + 4 + 4 tokens.
    assert (model["acceptance_per_position"], model["mean_acceptance_length"]) == ([1.0, 1.0, 1.0], 4.0)
    assert model["round_ms"]["draft"] > 0
    assert "model:3" in ran.out
    assert "goodput under e2e=1e+06 ms" in ran.out
    assert (tmp_path / "found.html").read_text().startswith("<!doctype html>")


def test_a_sweep_of_rates_over_a_file_counts_refused_prompts_and_succeeds(
    paceline: Paceline, tiny_trio: Trio, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.json"
    texts = ["t3 t1 t4", "t9 " * 600]
    prompts.write_text(json.dumps([{"conversations": [{"from": "human", "value": text}]} for text in texts]))
    flags = ("--prompts", prompts, "--max-tokens", 4, "--ignore-eos", "--raw", "--warmup", 0)
    addresses = ("--address", tiny_trio.address, "--address", tiny_trio.address)
    sweep = ("--sweep", "rate=100,200", "--requests", 6)
    ran = paceline("bench", *addresses, *flags, *sweep, "--json", tmp_path / "found.json")
    assert ran.code == 0, ran.err
    points = json.loads((tmp_path / "found.json").read_text())["points"]
    assert [point["load"] for point in points] == [{"rate": 100.0}, {"rate": 200.0}]
    for point in points:
        (variant,) = point["variants"]
        assert (variant["succeeded"], variant["output_tokens"]) == (3, 12)
        assert variant["failures"] == {"INVALID_ARGUMENT": 3}
    assert "throughput against latency" in ran.out
    assert "INVALID_ARGUMENT: prompt is " in ran.out


def test_where_every_request_fails_the_run_failed_and_its_files_say_why(
    paceline: Paceline, tiny_trio: Trio, tmp_path: Path
) -> None:
    prompts, found = tmp_path / "prompts.jsonl", tmp_path / "found.json"
    prompts.write_text(
        json.dumps({"messages": [{"role": "nobody", "content": "hi"}, {"role": "user", "content": "hi"}]})
    )
    flags = ("--prompts", prompts, "--requests", 3, "--warmup", 1, "--json", found)
    ran = paceline("bench", "--address", tiny_trio.address, *flags)
    assert ran.code == 1
    assert ran.err.startswith("error: every request failed; INVALID_ARGUMENT: chat.messages.role is 'nobody'")
    assert json.loads(found.read_text())["points"][0]["variants"][0]["failures"] == {"INVALID_ARGUMENT": 3}


def test_lengths_beyond_the_model_are_bad_usage(paceline: Paceline, tiny_trio: Trio) -> None:
    ran = paceline("bench", "--address", tiny_trio.address, "--synthetic", "500:20")
    assert (ran.code, ran.out) == (2, "")
    assert (
        ran.err
        == "error: --synthetic is '500:20'; it must be at most 512 tokens in all, the model's longest sequence\n"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--concurrency", 0], "--concurrency is 0; it must be in [1, 4096]"),
        (["--rate", "nan"], "--rate is nan; it must be in (0, 10000]"),
        (["--rate", 1, "--concurrency", 1], "--concurrency and --rate are given"),
        (["--sweep", "rate=1", "--rate", 1], "--rate and --sweep are given"),
        (["--sweep", "load=1"], "--sweep is 'load=1'; it must be like"),
        (["--requests", 0], "--requests is 0; it must be in [1, "),
        (["--duration", "inf"], "--duration is inf; it must be a finite number"),
        (["--warmup", -1], "--warmup is -1; it must be in [0, "),
        (["--timeout", 0], "--timeout is 0.0; it must be a finite number"),
        (["--max-tokens", 0], "max_tokens is 0; it must be in [1, "),
        (["--temperature", -1], "temperature is -1.0; it must be a finite number >= 0"),
        (["--seed", -1], "seed is -1; it must be in [0, 2^64)"),
        (["--synthetic", "5"], "--synthetic is '5'; it must be IN:OUT"),
        (["--synthetic", "5:5", "--max-tokens", 3], "--max-tokens and --synthetic are given"),
        (["--synthetic", "5:5", "--prompts", "x"], "--prompts and --synthetic are given"),
        (["--prompts", "/nowhere/prompts.jsonl"], "--prompts /nowhere/prompts.jsonl: no such file"),
        (["--prompts", "/"], "--prompts /: Is a directory"),
        (["--compare", "off,modle"], "--compare is 'off,modle'; it must be names from"),
        (["--slo", "ttft=0"], "--slo is 'ttft=0'; it must be of ttft, itl and e2e"),
        (["--json", "/nowhere/found.json"], "--json is '/nowhere/found.json'; it must be a file in a folder"),
        (["--html", "/"], "--html is '/'; it must be a file in a folder"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_line_that_names_the_flag(paceline: Paceline, flags: list[object], said: str) -> None:
    ran = paceline("bench", "--address", "unix:/nowhere/nobody.sock", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {said}")
    assert len(ran.err.splitlines()) == 1


async def test_ctrl_c_ends_with_130_and_frees_the_server(tiny_trio: Trio) -> None:
    flags = ("--address", tiny_trio.address, "--duration", "60", "--synthetic", "20:400")
    # Ctrl-C as in a terminal, even if the tests run in the background of a shell, which ignores it. In the program itself:
    # what runs between fork and exec may wait for ever for a lock that another thread of the tests held.
    heard = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    started = "runpy.run_module('paceline.loadtest', run_name='__main__')"
    command = (sys.executable, "-c", f"{heard}; {started}", *flags)
    async with AsyncClient(tiny_trio.address) as client:

        async def wait_until(is_running: bool) -> None:
            async with asyncio.timeout(60):
                while ((await client.describe()).running > 0) is not is_running:
                    await asyncio.sleep(0.02)

        # Another test's last generation, still ending, would be taken for this one's first.
        await wait_until(False)
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            await wait_until(True)
            process.send_signal(signal.SIGINT)
            _, said = await asyncio.wait_for(process.communicate(), 20)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 130
        assert b"Traceback" not in said
        await wait_until(False)
