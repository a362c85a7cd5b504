"""What all commands have in common: help, version, bad usage, and a terminal that lacks characters."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import paceline as package
from tests.services import Trio

COMMANDS = ("up", "generate", "chat", "demo", "plan", "bench", "key", "distill", "chat-template")


def run_with(encoding: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """As a process: a stream's encoding is settled when Python starts."""
    command = [sys.executable, "-c", "from paceline.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run(command, capture_output=True, env=environment, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_an_encoding_lacks_end_nothing(encoding: str) -> None:
    ran = run_with(encoding, "plan", "--alpha", "0.8", "--draft-cost", "0.1")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"Speculate with 6 draft tokens per round" in ran.stdout
    ran = run_with(encoding, "plan", "--alpha", "\U0001f600")
    assert (ran.returncode, b"Traceback" in ran.stderr) == (2, False)


def test_an_answer_with_an_emoji_is_printed_where_there_is_none(tiny_trio: Trio, tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    # The header repeats the prompt: the tiny model itself writes no emoji.
    file.write_text(json.dumps(["smile \U0001f600", "two"]))
    ran = run_with("latin-1", "generate", "--address", tiny_trio.address, "--prompts", str(file), "--max-tokens", "3")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.startswith(b"--- 1: smile ?\n")


FORECAST = ("plan", "--alpha", "0.8", "--draft-cost", "0.1")


def run_into(stdout: int, *arguments: str) -> tuple[int, bytes]:
    """Exit status and stderr of a process that writes there."""
    command = [sys.executable, "-c", "from paceline.cli import main; main()", *arguments]
    ran = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("plan", "--help"), FORECAST, (*FORECAST, "--json")], ids=" ".join
)
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        assert run_into(full.fileno(), *arguments) == (1, b"error: can't write the output: No space left on device\n")


@pytest.mark.parametrize("arguments", [("--help",), FORECAST], ids=" ".join)
def test_a_reader_that_went_is_no_error(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run_into(writer, *arguments) == (1, b"")
    finally:
        os.close(writer)


@pytest.mark.parametrize("flags", [(), ("--json",), ("--trace",)], ids=["text", "json", "trace"])
def test_a_disk_that_fills_ends_a_generation(flags: tuple[str, ...], tiny_trio: Trio) -> None:
    arguments = ("generate", "x", "--raw", "--address", tiny_trio.address, "--max-tokens", "5", "--ignore-eos")
    with open("/dev/full", "wb") as full:
        status, said = run_into(full.fileno(), *arguments, *flags)
    assert (status, said.splitlines()[-1]) == (1, b"error: can't write the output: No space left on device")
    assert b"Traceback" not in said


def run_with_closed(stream: str, *arguments: str) -> tuple[int, bytes, bytes]:
    """Exit status, stdout and stderr of a process that a shell starts with `<&-`, `>&-` or `2>&-`."""
    command = shlex.join([sys.executable, "-c", "from paceline.cli import main; main()", *arguments])
    ran = subprocess.run(["bash", "-c", f"{command} {stream}"], capture_output=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("arguments", [("--help",), FORECAST], ids=" ".join)
def test_a_closed_stdout_is_one_line(arguments: tuple[str, ...]) -> None:
    assert run_with_closed(">&-", *arguments) == (1, b"", b"error: stdout: Bad file descriptor\n")


def test_a_closed_stdout_ends_a_generation_and_a_chat(tiny_trio: Trio) -> None:
    for arguments in (("generate", "x", "--raw", "--max-tokens", "3"), ("chat",)):
        ran = run_with_closed(">&-", *arguments, "--address", tiny_trio.address)
        assert ran == (1, b"", b"error: stdout: Bad file descriptor\n")


def test_a_closed_stdin_matters_only_if_it_is_read(tiny_trio: Trio) -> None:
    for arguments in (("generate",), ("generate", "-"), ("chat",)):
        status, _, error = run_with_closed("<&-", *arguments, "--address", tiny_trio.address)
        assert (status, error) == (1, b"error: stdin: Bad file descriptor\n")
    flags = ("--raw", "--max-tokens", "3", "--address", tiny_trio.address)
    assert run_with_closed("<&-", "generate", "x", *flags)[::2] == (0, b"")


def test_an_error_stays_out_of_stdout_though_stderr_is_closed() -> None:
    assert run_with_closed("2>&-", "generat") == (2, b"", b"")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_every_option_in_full(paceline, monkeypatch: pytest.MonkeyPatch, command: str, flag: str) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ran = paceline(command, flag)
    assert (ran.code, ran.err) == (0, "")
    assert "…" not in ran.out.replace("...", "")
    assert ran.out.startswith(f"Usage: paceline {command} ")
    if command in ("generate", "chat"):
        assert "Advanced options:" in ran.out
        assert ("--repetition-penalty" in ran.out, "repetition_penalty" in ran.out) == (False, True)


@pytest.mark.parametrize(("command", "most"), [("up", 20), ("generate", 30)])
def test_a_command_has_few_flags(paceline, command: str, most: int) -> None:
    lines = paceline(command, "--help").out.splitlines()
    assert 0 < len([line for line in lines if line.startswith("  --")]) <= most


def test_help_of_all_names_the_commands_and_the_settings_file(paceline) -> None:
    for arguments in (("--help",), ("-h",), ()):
        ran = paceline(*arguments)
        assert [command for command in (*COMMANDS, "paceline.toml", "[generate]") if command not in ran.out] == []
        assert (ran.code, ran.err) == (0, "")
        # No line is cut.
        assert "..." not in ran.out.replace("[ARGS]...", "")


def test_the_version_is_told(paceline) -> None:
    ran = paceline("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"paceline {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("generate", "x", "--temprature", "1"),
            "error: No such option: --temprature (Possible options: --temperature",
        ),
        (("generate", "x", "--temperature", "hot"), "error: Invalid value for '--temperature': "),
        (("generate", "x", "y"), "error: Got unexpected extra argument"),
        (("generate", "x", "--seed"), "error: Option '--seed' requires an argument"),
        (("generat", "x"), "error: No such command 'generat'"),
        (("generate", "x", "--concurrency", "0"), "error: Invalid value for '--concurrency': "),
    ],
)
def test_bad_usage_is_one_line_that_says_where_help_is(paceline, arguments: tuple[str, ...], said: str) -> None:
    ran = paceline(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert ran.err.startswith(said)
    where = "paceline generate --help" if arguments[0] == "generate" else "paceline --help"
    assert ran.err.endswith(f"; see `{where}`\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("generate", "-5 + 3 = ?"), "put -- before a PROMPT that begins with -"),
        (("generate", "--what is it?"), "put -- before a PROMPT that begins with -"),
        (("demo", "-what is it?"), "put -- before a PROMPT that begins with -"),
        (("key", "-me", "--file", "keys"), "put -- before a NAME that begins with -"),
        (("generate", "x", "--temprature", "1"), None),
        (("plan", "-5"), None),
    ],
)
def test_an_argument_that_looks_like_an_option_is_told_how_to_be_given(
    paceline, arguments: tuple[str, ...], hint: str | None
) -> None:
    ran = paceline(*arguments)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: No such option: ")
    assert ran.err.endswith(f"; {hint}; see `paceline {arguments[0]} --help`\n" if hint else "--help`\n")
    assert (" -- " in ran.err) is bool(hint)
