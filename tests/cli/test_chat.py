"""`paceline chat` against real services, and in a real terminal for Ctrl-C."""

import asyncio
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.client import Client
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.conftest import TINY
from tests.hosted import Host
from tests.model_folder import write_model
from tests.services import Trio, running, start_service

pytestmark = pytest.mark.slow

HOW_TO_LEAVE = "An empty line, Ctrl-D or Ctrl-C ends the conversation"


@pytest.fixture
def chat(paceline, tiny_trio: Trio, monkeypatch: pytest.MonkeyPatch):
    """Runs a chat whose user writes `written`."""

    def run(written: bytes, *flags: object, **settings: object):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written), encoding="utf-8"))
        return paceline("chat", "--address", tiny_trio.address, *flags, **settings)

    return run


def test_it_says_who_answers_and_how_to_leave(chat) -> None:
    for written in (b"", b"\n"):
        ran = chat(written)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith(f"dummy:tiny. {HOW_TO_LEAVE}")


def test_it_remembers_the_conversation_and_samples_unless_told(chat, tiny_trio: Trio) -> None:
    # Without speculation a text depends on prompt, parameters and seed alone.
    flags = ("--system", "Be brief.", "--max-tokens", 5, "--seed", 3, "--speculation", "off")
    ran = chat(b"one\ntwo\n\nnever sent\n", *flags)
    sampling = SamplingParams(max_tokens=5, temperature=0.7, top_p=0.95, seed=3)
    messages = [{"role": "system", "content": "Be brief."}]
    answers = []
    with Client(tiny_trio.address) as client:
        for question in ("one", "two"):
            messages.append({"role": "user", "content": question})
            answers.append(client.complete(messages, sampling, SpeculationParams(enabled=False)).text)
            messages.append({"role": "assistant", "content": answers[-1]})
    assert answers[0] != answers[1]
    found = [part.strip() for part in ran.out.split("> ")[1:]]
    assert found == [*(f"{answer.strip()} [cut at 5 tokens: --max-tokens]" for answer in answers), ""]


def test_penalties_reach_the_model(chat) -> None:
    flags = ("--max-tokens", 60, "--temperature", 0)
    assert chat(b"say it\n", *flags).out != chat(b"say it\n", *flags, repetition_penalty=1.8).out


def test_a_question_that_is_refused_ends_nothing(chat) -> None:
    ran = chat(b"t9 " * 600 + b"\none\n", "--max-tokens", 3)
    assert ran.code == 0
    assert ran.err.startswith("error: prompt is ")
    assert ran.out.count("[cut at 3 tokens: --max-tokens]") == 1


def test_a_model_without_chat_template_is_refused_before_a_question(paceline, host: Host, tmp_path: Path) -> None:
    write_model(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": None}))
    target = host.start("target_server", *TINY, "--model", str(tmp_path))
    coordinator = host.start("coordinator", "--draft", "none", "--target", target.address)
    ran = paceline("chat", "--address", coordinator.address)
    assert (ran.code, ran.out) == (1, "")
    assert (
        ran.err == f"error: {tmp_path} has no chat template; `paceline generate --raw` continues a text without one\n"
    )


def test_latin_1_is_no_traceback(chat) -> None:
    ran = chat(b"caf\xe9\n")
    assert (ran.code, ran.err) == (2, "error: the question on stdin is not UTF-8 text\n")


class Terminal:
    """A program's end of a terminal: what it shows, and what is typed."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._unread = b""

    def read_until(self, wanted: bytes) -> None:
        """Returns when the terminal shows `wanted`; the next call reads what follows."""
        deadline_s = time.monotonic() + 60
        while wanted not in self._unread:
            ready, _, _ = select.select([self._number], [], [], deadline_s - time.monotonic())
            assert ready, self._unread
            self._unread += os.read(self._number, 4096)
        self._unread = self._unread.partition(wanted)[2]

    def type(self, keys: bytes) -> None:
        os.write(self._number, keys)

    def shows_a_new_line(self, seconds: float) -> bool:
        """Waits for the given time or the end of the program."""
        deadline_s = time.monotonic() + seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._number], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                return False
            try:
                self._unread += os.read(self._number, 4096)
            except OSError:
                # The program has closed its end.
                return True
        return True

    def close(self) -> None:
        os.close(self._number)


def leave_by_ctrl_c(terminal: Terminal, pid: int) -> int:
    """Presses Ctrl-C until the program leaves the prompt; returns its exit code.

    CPython's readline misses a signal between showing a prompt and waiting for a key: a test is quick enough for that. A
    second Ctrl-C while the interpreter ends would kill it.
    """
    deadline_s = time.monotonic() + 60
    terminal.type(b"\x03")
    while not terminal.shows_a_new_line(2.0):
        assert time.monotonic() < deadline_s
        terminal.type(b"\x03")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_until_running(client: Client, count: int) -> None:
    deadline_s = time.monotonic() + 60
    while client.describe().running != count:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_ctrl_c_ends_the_answer_on_the_server_and_then_the_conversation(host: Host, tmp_path: Path) -> None:
    # A process of its own, which is stopped.
    target = start_service("target_server", tmp_path, *TINY)
    coordinator = host.start("coordinator", "--draft", "none", "--target", target.address)
    with running(target):
        check_ctrl_c(coordinator.address, target.process)
    coordinator.stop()


def check_ctrl_c(address: str, target: subprocess.Popen[bytes]) -> None:
    # Ctrl-C as in a terminal, even if the tests run in the background of a shell, which ignores it.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heard}; from paceline.cli import main; main()"]
    arguments = ["chat", "--address", address, "--max-tokens", "5"]
    with Client(address) as client:
        wait_until_running(client, 0)
        pid, number = pty.fork()
        if pid == 0:
            os.execv(command[0], [*command, *arguments])
        terminal = Terminal(number)
        try:
            terminal.read_until(b"> ")
            # A stopped target: the answer can't end by itself.
            target.send_signal(signal.SIGSTOP)
            terminal.type(b"first\n")
            wait_until_running(client, 1)
            terminal.type(b"\x03")
            terminal.read_until(b"[ended by Ctrl-C]")
            wait_until_running(client, 0)
            target.send_signal(signal.SIGCONT)
            terminal.read_until(b"> ")
            terminal.type(b"second\n")
            terminal.read_until(b"[cut at 5 tokens: --max-tokens]")
            terminal.read_until(b"> ")
            status, pid = leave_by_ctrl_c(terminal, pid), 0
            assert status == 0
        finally:
            target.send_signal(signal.SIGCONT)
            terminal.close()
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


async def test_leaving_a_stream_by_an_interrupt_frees_the_client(tiny_trio: Trio) -> None:
    def interrupted() -> int:
        with Client(tiny_trio.address) as client:
            stream = client.stream("x", SamplingParams(max_tokens=400, ignore_eos=True))
            next(stream)
            with pytest.raises(KeyboardInterrupt):
                stream.throw(KeyboardInterrupt)
            wait_until_running(client, 0)
            return len(client.complete("x", SamplingParams(max_tokens=3, ignore_eos=True)).token_ids)

    assert await asyncio.to_thread(interrupted) == 3
