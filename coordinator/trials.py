"""Grammars are tried in another process before one of the services compiles them.

Clients write grammars, and the library that compiles them is native code: some texts overflow its stack, take gigabytes or
run for minutes. A trial of such a text dies alone, and its client learns why.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator import trial_process
from coordinator.trial_process import HEAD, MAX_BYTES, MAX_CPU_S
from paceline.errors import InvalidArgument, Unavailable

# Trials that run at once: short ones pass those that take long.
MAX_RUNNING = 4
# Seconds in all, if a trial gets no processor.
TIMEOUT_S = 30.0
# Libraries that start threads would make forks unsafe, and further heaps count as address space.
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
DEATHS = {
    signal.SIGSEGV: "exhausts the compiler's stack, as rules or references that nest too deeply do",
    signal.SIGPROF: f"takes more than {MAX_CPU_S:g} s to compile",
    signal.SIGABRT: f"takes more than {MAX_BYTES >> 20} MiB to compile",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a grammar that can be compiled alone: the client's field, and how an error there begins."""

    field: str
    problem: str
    text: str


@dataclass(frozen=True, slots=True)
class _Running:
    """A process and the control socket to it."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    def kill(self) -> None:
        """Ends it and its trials, if it has not ended before."""
        self.control.close()
        self.process.kill()


class GrammarTrials:
    """Tries grammars for one tokenizer. Its process starts at the first, and again after it has ended."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._options = json.dumps({"vocab_size": vocab_size, "eos_token_ids": list(eos_token_ids)}).encode()
        self._running: _Running | None = None
        self._starting: asyncio.Task[_Running] | None = None

    async def run(self, text: str, parts: Sequence[Part] = ()) -> int:
        """Returns the bytes that the compiled grammar takes. Cancelled, it ends the trial.

        Raises InvalidArgument naming a part or else "format", and Unavailable.
        """
        texts = [each.encode() for each in (text, *(part.text for part in parts))]
        request = b"".join((json.dumps([len(each) for each in texts]).encode(), b"\n", *texts))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # Once more if the process was killed from outside.
                said = await self._ask(request) or await self._ask(request)
        except TimeoutError:
            raise InvalidArgument("format", f"takes more than {TIMEOUT_S:g} s to compile") from None
        match said:
            case {"num_bytes": num_bytes}:
                return int(num_bytes)
            case {"problem": problem, "part": None, "allowed": allowed}:
                raise InvalidArgument("format", problem, allowed=allowed)
            case {"problem": problem, "part": at}:
                raise InvalidArgument(parts[at].field, f"{parts[at].problem}: {problem}")
            case {"died": number} if number != signal.SIGKILL:
                problem = DEATHS.get(number, "ends the process that compiles it")
                raise InvalidArgument("format", problem)
        raise Unavailable("the process that tries formats has ended; try again")

    async def _ask(self, request: bytes) -> Any:
        """Returns None if the process ends."""
        running = await self._start()
        said = b""
        with contextlib.suppress(OSError):
            said = await self._exchange(running, request)
        if said:
            return json.loads(said)
        # It has ended, even if `poll` does not see that yet. Another request may have started the next one.
        if self._running is running:
            self._running = None
        running.kill()
        await asyncio.to_thread(running.process.wait)
        return None

    async def _exchange(self, running: _Running, request: bytes) -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(running.control, [b"t"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.transport.abort()

    async def _start(self) -> _Running:
        if self._running is not None and self._running.process.poll() is None:
            return self._running
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start_next())
        # Others wait for it too.
        return await asyncio.shield(self._starting)

    async def _start_next(self) -> _Running:
        self.close()
        self._running = await asyncio.to_thread(self._start_process)
        return self._running

    def _start_process(self) -> _Running:
        """Returns when it has read the tokenizer, which may take seconds. Raises Unavailable."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", trial_process.__name__]
            # In a session of its own: Ctrl-C ends the coordinator, and this with it when all requests are done.
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), env=os.environ | ENVIRONMENT, start_new_session=True
            )
        running = _Running(process, ours)
        try:
            ours.sendall(HEAD.pack(len(self._options), len(self._tokenizer_json)))
            ours.sendall(self._options)
            ours.sendall(self._tokenizer_json)
            is_ready = bool(ours.recv(1))
        except OSError:
            is_ready = False
        if not is_ready:
            running.kill()
            process.wait()
            raise Unavailable("the process that tries formats can't be started; the coordinator's log says why")
        return running

    def close(self) -> None:
        """Ends the process and its trials."""
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            running.process.wait()
