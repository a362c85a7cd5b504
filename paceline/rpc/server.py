"""A gRPC server: health, reflection, signals, draining."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.errors import ConfigError, DeviceLost, InvalidArgument, OutOfRange, PacelineError, Unavailable
from paceline.observability.logs import LogFormat, LogLevel, set_up_logs
from paceline.rpc.channel import MAX_MESSAGE_BYTES, NO_TLS, SERVER_OPTIONS, check_address
from paceline.rpc.health import LIVE
from paceline.rpc.metadata import caller
from paceline.rpc.status import abort_with
from paceline.rpc.tls import Tls

log = logging.getLogger(__name__)
# How long calls in flight may go on after SIGTERM, and how long clients may take to hear that they have ended.
DRAIN_S, END_S = 20.0, 1.0


class Server:
    def __init__(
        self,
        listen: str,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        tls: Tls = NO_TLS,
        reflects: bool = False,
    ) -> None:
        """`listen`: HOST:PORT (port 0: any free one) or unix:PATH. Raises ConfigError.

        `interceptors` see every call, including health checks and reflection.
        """
        try:
            check_address("--listen", listen, is_listening=True)
        except InvalidArgument as error:
            raise ConfigError(str(error)) from error
        self._listen = listen
        self._tls = tls
        self._reflects = reflects
        self._server = grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = [health.SERVICE_NAME, *([reflection.SERVICE_NAME] if reflects else [])]
        # SERVING as long as the event loop runs, whatever the process depends on.
        self._always_serving = [LIVE, *([instance] if (instance := instance_of(os.environ)) else [])]
        self._is_stopping = False
        self._calls = _Calls()

    def add_service(self, descriptor: ServiceDescriptor, servicer: Any) -> None:
        handlers = {
            method.name: _handler(method, getattr(servicer, method.name), self._calls) for method in descriptor.methods
        }
        generic = grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self._names.append(descriptor.full_name)

    def add_fixed_answer(self, service: str, method: str, answer: Message) -> None:
        """Answers every call of a unary method alike, whatever its request: for clients of an older protocol."""
        data = answer.SerializeToString()

        async def call(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            return data

        handlers = {method: grpc.unary_unary_rpc_method_handler(call)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def start(self) -> str:
        """Returns the address with the actual port. Raises ConfigError if it is not available."""
        if self._reflects:
            reflection.enable_server_reflection(self._names, self._server)
        credentials = self._tls.server_credentials() if self._tls else None
        try:
            if credentials is None:
                port = self._server.add_insecure_port(self._listen)
            else:
                port = self._server.add_secure_port(self._listen, credentials)
        except RuntimeError as error:
            raise ConfigError(_taken(self._listen)) from error
        await self._server.start()
        # Objects made so far live as long as the process: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        for name in self._always_serving:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self.set_serving(True)
        if self._listen.startswith("unix:"):
            return self._listen
        return f"{self._listen.rpartition(':')[0]}:{port}"

    async def set_serving(self, serving: bool) -> None:
        is_serving = serving and not self._is_stopping
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ["", *self._names]:
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls; gives calls in flight `grace_s` to finish, and ends them with Unavailable."""
        self._is_stopping = True
        await self.set_serving(False)
        ending = asyncio.get_running_loop().call_later(grace_s, self._calls.end)
        await self._server.stop(grace_s + END_S)
        ending.cancel()


def require_free_address(listen: str, flag: str = "--listen") -> None:
    """Raises ConfigError if another process listens there; checked before models are loaded."""
    if listen.startswith("unix:"):
        with socket.socket(socket.AF_UNIX) as probe:
            is_taken = probe.connect_ex(listen.removeprefix("unix:")) == 0
    else:
        host, _, port = listen.rpartition(":")
        is_taken = _is_bound(host.strip("[]"), int(port))
    if is_taken:
        raise ConfigError(_taken(listen, flag))


def _is_bound(host: str, port: int) -> bool:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        with socket.socket(family, kind) as probe:
            # As gRPC does: a connection in TIME_WAIT does not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror}") from error
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"can't listen on {host}:{port}: {error.strerror}") from error
        return True
    return False


def _taken(listen: str, flag: str = "--listen") -> str:
    return f"can't listen on {listen}: the address is in use; is another one running? {flag} sets another address"


async def wait_for_signal() -> None:
    """Waits for SIGTERM or SIGINT, then removes its handlers, so that a second signal kills."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def run(main: Callable[[], Any], log_format: LogFormat = "text", log_level: LogLevel = "info") -> None:
    """Runs a service's coroutine under uvloop; on ConfigError or DeviceLost prints one line and exits with 1."""

    def tell(error: Exception) -> None:
        if log_format == "json":
            log.critical("%s", error)
        else:
            print(f"error: {error}", file=sys.stderr, flush=True)

    import uvloop

    end_with_supervisor()
    # Shorter turns of the device thread at the interpreter, for the event loop's sake.
    sys.setswitchinterval(0.0005)
    set_up_logs(log_format, log_level)
    try:
        uvloop.run(main())
    except ConfigError as error:
        tell(error)
        sys.exit(1)
    except DeviceLost as error:
        tell(error)
        # Without destructors, which could wait for the lost device.
        os._exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


class _Calls:
    """The calls in flight. Those that a stopping server ends fail otherwise than those of one that died."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.has_ended = False

    def end(self) -> None:
        self.has_ended = True
        for task in self.tasks:
            task.cancel()


def _handler(method: MethodDescriptor, behavior: Callable[..., Any], calls: _Calls) -> grpc.RpcMethodHandler:
    """Wraps a method: an undecodable message becomes INVALID_ARGUMENT, a PacelineError its own status code."""
    request_class = message_factory.GetMessageClass(method.input_type)

    def decode(data: bytes) -> Message | None:
        try:
            return request_class.FromString(data)
        except DecodeError:
            # An exception here would become UNKNOWN.
            return None

    kinds = {
        (False, False): (grpc.unary_unary_rpc_method_handler, _answer_once),
        (False, True): (grpc.unary_stream_rpc_method_handler, _answer_stream),
        (True, True): (grpc.stream_stream_rpc_method_handler, _answer_stream),
    }
    make, wrap = kinds[method.client_streaming, method.server_streaming]
    return make(wrap(behavior, calls), request_deserializer=decode)


def _checked(request: Any) -> Any:
    if request is None:
        raise InvalidArgument("message", "is not valid protobuf of the expected type")
    if not hasattr(request, "__aiter__"):
        return request

    async def messages() -> AsyncIterator[Any]:
        async for message in request:
            yield _checked(message)

    return messages()


def _encoded(answer: Any) -> bytes:
    """Encodes a response that is not bytes yet. Raises OutOfRange beyond the message limit."""
    data: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    if len(data) > MAX_MESSAGE_BYTES:
        raise OutOfRange(f"the answer has {len(data)} bytes; a message may have {MAX_MESSAGE_BYTES}")
    return data


def _answer_once(behavior: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with _CallGuard(context, calls) as guard:
            return _encoded(await behavior(_checked(request), context))
        await guard.abort()

    return call


def _answer_stream(behavior: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
    # Writes itself: a generator around a generator would cost another step of the event loop per message.
    async def call(request: Any, context: grpc.aio.ServicerContext) -> None:
        with _CallGuard(context, calls) as guard:
            async with contextlib.aclosing(behavior(_checked(request), context)) as responses:
                async for response in responses:
                    await context.write(_encoded(response))
            return
        await guard.abort()

    return call


class _CallGuard(contextlib.AbstractContextManager["_CallGuard"]):
    """Ends a call with an exception's status: INTERNAL for foreign ones."""

    def __init__(self, context: grpc.aio.ServicerContext, calls: _Calls) -> None:
        self._context, self._calls = context, calls
        self._error: Exception | None = None
        self._task = asyncio.current_task()

    def __enter__(self) -> "_CallGuard":
        if self._task is not None:
            self._calls.tasks.add(self._task)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        if self._task is not None:
            self._calls.tasks.discard(self._task)
            if isinstance(error, asyncio.CancelledError) and self._calls.has_ended:
                self._task.uncancel()
                error = Unavailable("the server was told to end")
        if not isinstance(error, Exception) or isinstance(error, grpc.aio.AbortError):
            return False
        if not isinstance(error, PacelineError):
            owner = caller.get()
            log.exception("a call failed%s", f" (key of {owner})" if owner else "", exc_info=error)
        self._error = error
        return True

    async def abort(self) -> None:
        assert self._error is not None
        await abort_with(self._context, self._error)


# "PID INSTANCE SIGNAL", set by the supervisor (`paceline up`, or a replica of Ray Serve) of a process.
SUPERVISOR_VARIABLE = "PACELINE_SUPERVISOR"
# prctl(2): the signal that this process gets when its parent's thread ends.
_PR_SET_PDEATHSIG = 1


def supervised_environment(instance: str, death_signal: signal.Signals = signal.SIGTERM) -> dict[str, str]:
    """`death_signal`: what the process gets when this one dies."""
    return {**os.environ, SUPERVISOR_VARIABLE: f"{os.getpid()} {instance} {death_signal.value}"}


def instance_of(variables: Mapping[str, str]) -> str | None:
    """Returns the health service name by which the supervisor recognizes this process, if it has one."""
    words = variables.get(SUPERVISOR_VARIABLE, "").split()
    return f"instance.{words[1]}" if len(words) > 1 else None


def end_with_supervisor() -> None:
    """Asks the kernel for the supervisor's signal when the supervisor dies (Linux only)."""
    words = os.environ.get(SUPERVISOR_VARIABLE, "").split()
    if not words or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(words[2]))
    if os.getppid() != int(words[0]):
        # The supervisor has died already.
        sys.exit(1)
