"""The service processes on this machine: started, watched, restarted, stopped."""

import asyncio
import contextlib
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.deployment.deployment import Deployment
from paceline.deployment.http_health import instance_at, url_of
from paceline.deployment.log_lines import LastWords, lines_of
from paceline.errors import ConfigError, InvalidArgument
from paceline.rpc.channel import check_address
from paceline.rpc.health import is_serving
from paceline.rpc.server import supervised_environment
from paceline.rpc.tls import Tls

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
# Between a process's end and the last lines of its log.
LOG_GRACE_S = 0.1
LogLine = Callable[[str, str], None]


@dataclass(slots=True)
class Process:
    """One service: how to run it, and the process while it runs."""

    name: str
    arguments: list[str]
    # Where it is called, and how.
    address: str
    tls: Tls
    # By which its health service knows it: another process may have its address.
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    process: asyncio.subprocess.Process | None = None
    last_words: LastWords = field(default_factory=LastWords)

    def is_serving(self) -> bool:
        """Whether this process, and no other, answers health checks at its address."""
        return is_serving(self.address, 1.0, f"instance.{self.instance}", self.tls)


class HttpProcess(Process):
    """One whose health is asked by HTTP."""

    def is_serving(self) -> bool:
        return instance_at(self.address, 1.0, self.tls) == self.instance


def make_socket_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Makes a folder for unix sockets that gRPC can call: in /tmp if TMPDIR is no place for them. Raises ConfigError."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix)
        try:
            # The longest name in it.
            check_address("TMPDIR", f"unix:{folder.name}/coordinator.sock")
        except InvalidArgument:
            folder.cleanup()
            folder = tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp")
    except OSError as error:
        raise ConfigError(f"can't make a folder for sockets: {error} (TMPDIR gives another place for it)") from error
    return folder


class Services:
    """Draft, target and coordinator, and a gateway if there is to be one. The model servers are reached by unix sockets."""

    def __init__(self, deployment: Deployment, log_line: LogLine) -> None:
        """`log_line(service, line)` gets what the services write."""
        self._log_line = log_line
        self._folder = make_socket_folder("paceline-")
        self._tasks: list[asyncio.Task[None]] = []
        self._processes = list(self._plan(deployment))
        self.address = deployment.listen
        self.tls = deployment.tls
        # None without a gateway.
        self.url = url_of(deployment.http_listen, bool(deployment.http_tls)) if deployment.gateway is not None else None

    async def __aenter__(self) -> "Services":
        """Starts all. Raises ConfigError with what a service that does not come up says of it."""
        try:
            models = [each for each in self._processes if each.name in ("target", "draft")]
            async with asyncio.TaskGroup() as starting:
                for process in models:
                    starting.create_task(self._start(process))
            for process in self._processes[len(models) :]:
                await self._start(process)
        except BaseException as error:
            await self.stop()
            raise _first(error) from None
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def watch(self) -> None:
        """Restarts what dies, with back-off, until cancelled."""
        await asyncio.gather(*(self._keep_running(process) for process in self._processes))

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by service."""
        return {service.name: service.process.pid for service in self._processes if service.process is not None}

    @property
    def addresses(self) -> dict[str, str]:
        """Where each service listens."""
        return {service.name: service.address for service in self._processes}

    async def stop(self) -> None:
        """From the front to the back, so that its clients' generations end in order."""
        for process in reversed(self._processes):
            await _end(process)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._folder.cleanup()

    def _plan(self, deployment: Deployment) -> Iterator[Process]:
        folder = Path(self._folder.name)
        draft, target = f"unix:{folder / 'draft'}.sock", f"unix:{folder / 'target'}.sock"
        lock = ["--compute-lock-file", str(folder / "compute.lock")] if deployment.shares_cores else []
        flags = [*deployment.target, "--listen", target, *lock]
        yield Process("target", ["target_server", *flags], target, deployment.models_tls)
        if deployment.draft is not None:
            flags = [*deployment.draft, "--listen", draft, *lock]
            yield Process("draft", ["draft_server", *flags], draft, deployment.models_tls)
        addresses = ["--target", target, "--draft", draft if deployment.draft is not None else "none"]
        flags, called = [*deployment.coordinator, *addresses], called_at(deployment.listen)
        yield Process("coordinator", ["coordinator", *flags], called, deployment.tls)
        if deployment.gateway is not None:
            flags = [*deployment.gateway, "--coordinators", called]
            yield HttpProcess("gateway", ["gateway", *flags], called_at(deployment.http_listen), deployment.http_tls)

    async def _start(self, service: Process) -> None:
        """Returns when the service answers health checks. Raises ConfigError if it ends, or is not ready in time."""
        service.last_words = LastWords()
        service.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *service.arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=supervised_environment(service.instance),
            # Ctrl-C in a terminal goes to the whole group; we stop them in our own order.
            start_new_session=True,
        )  # fmt: skip
        self._tasks.append(asyncio.create_task(self._copy_log(service, service.process)))
        deadline_s = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while not await asyncio.to_thread(service.is_serving):
            if (status := service.process.returncode) is not None:
                await asyncio.sleep(LOG_GRACE_S)
                raise ConfigError(f"the {service.name} did not start: {service.last_words.of(status)}")
            if asyncio.get_running_loop().time() > deadline_s:
                raise ConfigError(f"the {service.name} was not ready within {READY_TIMEOUT_S:.0f} s")
            await asyncio.sleep(0.05)

    async def _copy_log(self, service: Process, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in lines_of(process.stdout):
            service.last_words.hear(line)
            self._log_line(service.name, line)

    async def _keep_running(self, service: Process) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            assert service.process is not None
            status = await service.process.wait()
            self._log_line(service.name, f"ended with status {status}; starting it again in {backoff_s:.1f} s")
            await asyncio.sleep(backoff_s)
            backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)
            try:
                await self._start(service)
                backoff_s = FIRST_BACKOFF_S
            except ConfigError as error:
                self._log_line(service.name, str(error))


def called_at(listen: str) -> str:
    """Where this machine calls what listens there: no certificate is for all addresses."""
    host, colon, port = listen.rpartition(":")
    return f"localhost{colon}{port}" if host in ("0.0.0.0", "[::]") else listen


def _first(error: BaseException) -> BaseException:
    """Of services that did not come up, the first; a cancellation stays what it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _end(service: Process) -> None:
    """SIGTERM, and SIGKILL if that is not heard."""
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
