"""Starts the real services as real processes, on unix sockets in a folder of their own."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.rpc.channel import open_channel
from paceline.rpc.health import is_serving
from paceline.v1 import model_pb2, model_pb2_grpc
from tests.forked import ForkedProcess

START_TIMEOUT_S = 240.0


def free_port() -> int:
    """Finds a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Service:
    """One process."""

    module: str
    address: str
    process: ForkedProcess | subprocess.Popen[bytes]
    log: Path

    def wait_serving(self) -> None:
        """Raises RuntimeError with its log if it does not come to serve."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not is_serving(self.address, timeout_s=1.0):
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(f"{self.module} did not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def stop(self) -> int:
        """SIGTERM, as `docker stop` sends it; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> None:
        """SIGKILL: the process has no chance to say goodbye."""
        self.process.kill()
        self.process.wait()


def split_variables(flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Variables for the settings that have no flag, and the flags."""
    variables = [flag for flag in flags if flag.startswith("PACELINE_")]
    return dict(each.split("=", 1) for each in variables), [flag for flag in flags if flag not in variables]


def start_service(module: str, folder: Path, *flags: str, address: str = "") -> Service:
    """Starts `python -m MODULE` and waits until it serves. Raises with its log if it does not."""
    service = spawn_service(module, folder, *flags, address=address)
    service.wait_serving()
    return service


def spawn_service(
    module: str, folder: Path, *flags: str, address: str = "", cores: Collection[int] | None = None
) -> Service:
    """The same without the waiting. `flags` may begin with variables: PACELINE_TARGET_STEP_TIMEOUT=1.

    `cores`: to run on; by default all.
    """
    address = address or f"unix:{folder}/{module}.sock"
    log = folder / f"{module}.log"
    variables, rest = split_variables(flags)
    arguments, environment = ["--listen", address, *rest], {**os.environ, **variables}
    log.touch()
    if cores is None:
        return Service(module, address, ForkedProcess(module, arguments, folder, log, environment), log)
    with log.open("ab") as output, on_cores(cores):
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
    return Service(module, address, process, log)


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Processes started inside inherit these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def restart(service: Service) -> Service:
    """The same command at the same address."""
    flags = service.process.args[5:]  # after python -m MODULE --listen ADDRESS
    return start_service(service.module, service.log.parent, *flags, address=service.address)


async def free_and_total_blocks(service: Service) -> tuple[int, int]:
    """Of a model server's cache."""
    async with open_channel(service.address) as channel:
        model_info = await model_pb2_grpc.ModelStub(channel).Describe(model_pb2.DescribeModelRequest())
    return model_info.free_blocks, model_info.total_blocks


async def wait_until_free(service: Service) -> None:
    """Blocks are freed at the next engine step after a stream's end."""
    for _ in range(200):
        free, total = await free_and_total_blocks(service)
        if free == total:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{service.module}: {free} of {total} blocks are free")


@dataclass(slots=True)
class Trio:
    """The three services."""

    draft: Service
    target: Service
    coordinator: Service

    @property
    def address(self) -> str:
        return self.coordinator.address


@contextlib.contextmanager
def running(*services: Service) -> Iterator[None]:
    """Ends the processes, by their ids, whatever happens inside."""
    try:
        yield
    finally:
        for service in services:
            if service.process.poll() is None:
                service.process.kill()
                service.process.wait()


@contextlib.contextmanager
def start_trio(
    folder: Path,
    target: tuple[str, ...],
    draft: tuple[str, ...],
    coordinator: tuple[str, ...] = (),
    is_apart: bool = False,
) -> Iterator[Trio]:
    """All three, with these flags. `is_apart`: the model servers share no core, so the draft model drafts ahead."""
    half = sorted(os.sched_getaffinity(0))
    half, rest = half[: len(half) // 2], half[len(half) // 2 :]
    with contextlib.ExitStack() as stack:
        started = []
        for module, flags, cores in (("draft_server", draft, half), ("target_server", target, rest)):
            lock = () if is_apart else ("--compute-lock-file", f"{folder}/compute.lock")
            started.append(spawn_service(module, folder, *lock, *flags, cores=cores if is_apart else None))
            stack.enter_context(running(started[-1]))
        for service in started:
            service.wait_serving()
        addresses = ("--draft", started[0].address, "--target", started[1].address)
        coordinator = spawn_service("coordinator", folder, *addresses, *coordinator)
        stack.enter_context(running(coordinator))
        try:
            coordinator.wait_serving()
        except RuntimeError as error:
            # A coordinator waits for both, so the reason is often theirs.
            for service in started:
                error.add_note(f"{service.module}'s log:\n{service.log.read_text()[-4000:]}")
            raise
        yield Trio(started[0], started[1], coordinator)
