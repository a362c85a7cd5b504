"""Starts, watches, restarts and stops service processes on this machine."""

import asyncio
import contextlib
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.backoff import Backoff
from paceline.cli.stack import Stack
from paceline.errors import ConfigError, InvalidArgument
from paceline.rpc.channel import check_address
from paceline.rpc.health import instance_at, is_serving
from paceline.rpc.server import supervised_environment
from paceline.rpc.tls import Tls

READ_BYTES = 65536
# Longer lines are split.
MAX_LINE_BYTES = 65536
# Starts of lines that explain why a process ends: a service's last line, or an exception of ours in a traceback.
_REASON = re.compile(r"error: |paceline\.errors\.\w+: ")


class ExitReason:
    def __init__(self) -> None:
        self._line, self._reason = "", ""

    def add_line(self, line: str) -> None:
        self._line = line or self._line
        if begin := _REASON.match(line):
            self._reason = line[begin.end() :]

    def of(self, status: int) -> str:
        return self._reason or f"it ended with status {status}; its last line: {self._line or 'none'}"


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    begun = b""
    while chunk := await stream.read(READ_BYTES):
        *whole, begun = (begun + chunk).split(b"\n")
        for line in whole:
            for part in _parts(line):
                yield _text_of(part)
        # The last part may be incomplete.
        *parts, begun = _parts(begun)
        for part in parts:
            yield _text_of(part)
    if begun:
        yield _text_of(begun)


def _parts(line: bytes) -> list[bytes]:
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, max(1, len(line)), MAX_LINE_BYTES)]


def _text_of(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()


READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
# For the last lines of a log, after its process has ended.
LOG_GRACE_S = 0.1
LogLine = Callable[[str, str], None]


@dataclass(slots=True)
class Service:
    name: str
    arguments: list[str]
    # How to call it.
    address: str
    tls: Tls
    # Tells it apart, in health checks, from another process at its address.
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    process: asyncio.subprocess.Process | None = None
    exit_reason: ExitReason = field(default_factory=ExitReason)

    def is_serving(self) -> bool:
        """Whether this process, not another, answers health checks at its address."""
        return is_serving(self.address, 1.0, f"instance.{self.instance}", self.tls)


class HttpService(Service):
    def is_serving(self) -> bool:
        return instance_at(self.address, 1.0, self.tls) == self.instance


def make_socket_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Makes a folder in TMPDIR, or in /tmp if the path is too long for gRPC. Raises ConfigError."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix)
        try:
            # The longest path in it.
            check_address("TMPDIR", f"unix:{folder.name}/coordinator.sock")
        except InvalidArgument:
            folder.cleanup()
            folder = tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp")
    except OSError as error:
        raise ConfigError(f"can't make a folder for sockets: {error} (TMPDIR sets another parent folder)") from error
    return folder


class Services:
    """Runs the services of a stack; the model servers listen on unix sockets."""

    def __init__(self, stack: Stack, log_line: LogLine) -> None:
        """`log_line(service, line)` is called for each line of output."""
        self._log_line = log_line
        self._folder = make_socket_folder("paceline-")
        self._tasks: list[asyncio.Task[None]] = []
        # Of each service, by its name.
        self.addresses: dict[str, str] = {}
        self._services = list(self._plan(stack))
        self.address = stack.listen
        self.tls = stack.tls
        # None without a gateway.
        self.url = url_of(stack.http_listen, bool(stack.http_tls)) if stack.gateway is not None else None

    async def __aenter__(self) -> "Services":
        try:
            models = [each for each in self._services if each.name not in ("coordinator", "gateway")]
            async with asyncio.TaskGroup() as starting:
                for service in models:
                    starting.create_task(self._start(service))
            for service in self._services[len(models) :]:
                await self._start(service)
        except BaseException as error:
            await self.stop()
            raise _first(error) from None
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def watch(self) -> None:
        """Restarts services that die, with exponential backoff."""
        await asyncio.gather(*(self._keep_running(service) for service in self._services))

    @property
    def pids(self) -> dict[str, int]:
        return {service.name: service.process.pid for service in self._services if service.process is not None}

    async def stop(self) -> None:
        """Stops clients before servers, so that generations end in order."""
        for service in reversed(self._services):
            await _end(service)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._folder.cleanup()

    def _plan(self, stack: Stack) -> Iterator[Service]:
        folder = Path(self._folder.name)
        lock = ["--compute-lock-file", str(folder / "compute.lock")] if stack.shares_device else []
        kinds = {"target": (stack.num_targets, stack.target), "draft": (stack.num_drafts, stack.draft or [])}
        addresses: list[str] = []
        commands: dict[str, list[str]] = {}
        for kind, (count, given) in kinds.items():
            names = [kind, *(f"{kind}-{number}" for number in range(2, count + 1))][:count]
            listens = {name: f"unix:{folder / name}.sock" for name in names}
            commands |= {name: [f"{kind}_server", *given, "--listen", at, *lock] for name, at in listens.items()}
            self.addresses |= listens
            addresses += [f"--{kind}", ",".join(listens.values()) or "none"]
        if stack.colocates_draft:
            commands["target"] += commands.pop("draft")
        for name, command in commands.items():
            yield Service(name, command, self.addresses[name], stack.models_tls)
        flags, called = [*stack.coordinator, *addresses], called_at(stack.listen)
        self.addresses["coordinator"] = called
        yield Service("coordinator", ["coordinator", *flags], called, stack.tls)
        if stack.gateway is not None:
            flags, self.addresses["gateway"] = [*stack.gateway, "--coordinators", called], called_at(stack.http_listen)
            yield HttpService("gateway", ["gateway", *flags], self.addresses["gateway"], stack.http_tls)

    async def _start(self, service: Service) -> None:
        service.exit_reason = ExitReason()
        service.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *service.arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=supervised_environment(service.instance),
            # Ctrl-C reaches the whole process group; the services must stop in order.
            start_new_session=True,
        )  # fmt: skip
        self._tasks.append(asyncio.create_task(self._copy_log(service, service.process)))
        deadline_s = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while not await asyncio.to_thread(service.is_serving):
            if (status := service.process.returncode) is not None:
                await asyncio.sleep(LOG_GRACE_S)
                raise ConfigError(f"the {service.name} did not start: {service.exit_reason.of(status)}")
            if asyncio.get_running_loop().time() > deadline_s:
                raise ConfigError(f"the {service.name} was not ready within {READY_TIMEOUT_S:.0f} s")
            await asyncio.sleep(0.05)

    async def _copy_log(self, service: Service, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in lines_of(process.stdout):
            service.exit_reason.add_line(line)
            self._log_line(service.name, line)

    async def _keep_running(self, service: Service) -> None:
        backoff = Backoff(FIRST_BACKOFF_S, MAX_BACKOFF_S)
        while True:
            assert service.process is not None
            status = await service.process.wait()
            pause_s = backoff.take()
            self._log_line(service.name, f"ended with status {status}; starting it again in {pause_s:.1f} s")
            await asyncio.sleep(pause_s)
            try:
                await self._start(service)
                backoff.reset()
            except ConfigError as error:
                self._log_line(service.name, str(error))


def url_of(listen: str, has_tls: bool) -> str:
    return listen if listen.startswith("unix:") else f"http{'s' if has_tls else ''}://{listen}"


def called_at(listen: str) -> str:
    """Returns localhost for all interfaces, as certificates name it."""
    host, colon, port = listen.rpartition(":")
    return f"localhost{colon}{port}" if host in ("0.0.0.0", "[::]") else listen


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _end(service: Service) -> None:
    process = service.process
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
