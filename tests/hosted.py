"""Services that share one process: each runs its own `main`, all on one event loop.

What needs behavior over gRPC needs no process for each service: three processes import torch, transformers and
Numba three times. Real processes (tests/services.py) stay for what they alone show: signals, `kill -9`, the exit status.

python -m tests.hosted reads commands from stdin, a line of JSON each, and answers on stdout.
"""

import asyncio
import contextvars
import importlib
import itertools
import json
import os
import subprocess
import sys
import unittest.mock
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.serving import main as serving_main
from tests.services import Trio, split_variables

ROOT = Path(__file__).parents[1]


class RefusedStart(Exception):
    """A service ended before it served: by which exception, and what that says."""


@dataclass(slots=True)
class HostedService:
    """One service, as tests see it: what `Service` is for a process."""

    module: str
    address: str
    log: Path
    number: int
    host: "Host"

    def stop(self) -> int:
        """Lets it drain, as after SIGTERM; returns what its process's exit status would be."""
        return int(self.host.ask("stop", number=self.number)["error"] is not None)


class Host:
    """The process. Not for use by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "host.log"
        self._numbers = itertools.count(1)
        self._trios: dict[tuple[tuple[str, ...], ...], Trio] = {}
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "tests.hosted"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, text=True
            )

    def start(self, module: str, *flags: str) -> HostedService:
        """Waits until it serves. Raises RefusedStart if it does not come to serve."""
        number = next(self._numbers)
        address = f"unix:{self._folder}/{number}.sock"
        listen = () if "--listen" in flags else ("--listen", address)
        answer = self.ask("start", number=number, module=module, flags=[*listen, *flags])
        if answer["error"] is not None:
            raise RefusedStart(answer["error"])
        return HostedService(module, address, self._log, number, self)

    def start_trio(self, target: tuple[str, ...], draft: tuple[str, ...], coordinator: tuple[str, ...] = ()) -> Trio:
        """All three, with these flags."""
        lock = ("--compute-lock-file", f"{self._folder}/{next(self._numbers)}.lock")
        servers = self.start("draft_server", *lock, *draft), self.start("target_server", *lock, *target)
        addresses = ("--draft", servers[0].address, "--target", servers[1].address)
        return Trio(*servers, self.start("coordinator", *addresses, *coordinator))  # type: ignore[arg-type]

    def trio(self, target: tuple[str, ...], draft: tuple[str, ...], coordinator: tuple[str, ...] = ()) -> Trio:
        """The same, started once for all who ask for these flags: not for who stops one of them."""
        flags = (target, draft, coordinator)
        if flags not in self._trios:
            self._trios[flags] = self.start_trio(*flags)
        return self._trios[flags]

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the host has ended:\n{self._log.read_text()[-4000:]}")
        return dict(json.loads(answer))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(slots=True)
class Running:
    """One service inside the host."""

    serving: asyncio.Event
    ending: asyncio.Event
    task: asyncio.Task[None] | None = None


CURRENT: contextvars.ContextVar[Running] = contextvars.ContextVar("CURRENT")


async def wait_to_be_stopped() -> None:
    """Replaces the wait for a signal, since a signal goes to the whole process."""
    running = CURRENT.get()
    running.serving.set()
    await running.ending.wait()


def capture_coroutine(module: str, flags: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    """What the module's `main` would run. Raises SystemExit at bad flags.

    Flags may begin with variables for the settings that have no flag: PACELINE_COORDINATOR_NGRAM_WINDOW=12.
    """
    found: list[Callable[[], Coroutine[Any, Any, None]]] = []
    entry = importlib.import_module(f"{module}.__main__")
    # How it logs is the host's own.
    entry.run = lambda main, log_format, log_level: found.append(main)
    if hasattr(entry, "wait_for_signal"):
        entry.wait_for_signal = wait_to_be_stopped
    variables, flags = split_variables(flags)
    sys.argv = [module, *flags]
    with unittest.mock.patch.dict(os.environ, variables):
        entry.main()
    return found[0]


async def start(module: str, flags: list[str]) -> tuple[Running, str | None]:
    """Returns once it serves, or has ended: then with what it says."""
    running = Running(asyncio.Event(), asyncio.Event())
    CURRENT.set(running)
    running.task = asyncio.create_task(capture_coroutine(module, flags)())
    serving = asyncio.create_task(running.serving.wait())
    await asyncio.wait({running.task, serving}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    return running, describe(running.task.exception()) if running.task.done() else None


def describe(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


async def stop(running: Running) -> str | None:
    running.ending.set()
    assert running.task is not None
    await asyncio.wait({running.task})
    return describe(running.task.exception())


async def serve_commands() -> None:
    serving_main.wait_for_signal = wait_to_be_stopped
    running: dict[int, Running] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        if asked["command"] == "start":
            running[asked["number"]], error = await start(asked["module"], asked["flags"])
        else:
            error = await stop(running.pop(asked["number"]))
        print(json.dumps({"error": error}), flush=True)


if __name__ == "__main__":
    from paceline.rpc.server import run

    serving_main.prepare_process()
    run(serve_commands)
