"""A proxy on a link: it forwards bytes, tells what passes, and on demand holds them back, cuts the connection, or puts
other bytes in an answer's place."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.frames import PREFACE, Frame, FrameReader, data_frame
from tests.faults.traffic import Command, Traffic

CHUNK_BYTES = 1 << 16
# A connection that is closed so is reset.
RESET = struct.pack("ii", 1, 0)
# Makes what is sent in place of an answer to these commands.
Forge = Callable[[list[int]], bytes]


@dataclass(slots=True, eq=False)
class Connection:
    """One connection's two ends."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    traffic: Traffic | None
    is_closed: bool = False

    def close(self, resets: bool = False) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for writer in (self.client, self.server):
            held = writer.get_extra_info("socket")
            if resets and held is not None and held.family == socket.AF_INET:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


@dataclass(slots=True)
class Ambush:
    """Calls `strike` as soon as a command that is `wanted` has passed; its answer does not pass before `release`."""

    wanted: Callable[[Command], bool]
    strike: Callable[[], None]


@dataclass(slots=True)
class Proxy:
    """In front of one server. If it `reads_session`, it knows the commands and answers that pass."""

    upstream: str
    reads_session: bool = False
    address: str = ""
    _connections: set[Connection] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _may_command: asyncio.Event = field(default_factory=asyncio.Event)
    _may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    _num_held: int = 0
    _ambush: Ambush | None = None
    _forge: Forge | None = None
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self.release()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.release()
        self.cut()
        await asyncio.gather(*self._tasks)

    @property
    def traffic(self) -> list[Traffic]:
        """Of all connections."""
        return [each.traffic for each in self._connections if each.traffic is not None]

    @property
    def is_between(self) -> bool:
        """Whether a command is held back, and none is with the server."""
        return self._num_held > 0 and not any(each.with_server for each in self.traffic)

    def has_with_server(self, wanted: Callable[[Command], bool]) -> bool:
        return any(each.has_with_server(wanted) for each in self.traffic)

    @property
    def has_to_forge(self) -> bool:
        """Whether no answer has come that could be forged."""
        return self._forge is not None

    def lie_in_wait(self, wanted: Callable[[Command], bool], strike: Callable[[], None]) -> None:
        self._ambush = Ambush(wanted, strike)

    def hold_commands(self) -> None:
        """From the next Propose or Verify on."""
        self._may_command.clear()

    def hold_answers(self) -> None:
        self._may_answer.clear()

    def release(self) -> None:
        self._ambush = None
        self._may_command.set()
        self._may_answer.set()

    def cut(self) -> None:
        """Resets all connections; new ones are taken."""
        for each in list(self._connections):
            each.close(resets=True)

    def forge_next_answer(self, forge: Forge) -> None:
        """If no command is with the server, at once: an answer that nobody asked for."""
        busy = [each for each in self._connections if each.traffic is not None and each.traffic.stream]
        if any(each.traffic.with_server for each in busy if each.traffic is not None):
            self._forge = forge
            return
        for each in busy:
            assert each.traffic is not None
            each.client.write(data_frame(each.traffic.stream, forge([2**40])))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.upstream.startswith("unix:"):
                answers, commands = await asyncio.open_unix_connection(self.upstream.removeprefix("unix:"))
            else:
                host, _, port = self.upstream.rpartition(":")
                answers, commands = await asyncio.open_connection(host, int(port))
        except OSError:
            # Nobody is there.
            writer.transport.abort()
            return
        connection = Connection(writer, commands, Traffic() if self.reads_session else None)
        self._connections.add(connection)
        pumps = [
            asyncio.create_task(self._pump_commands(connection, reader)),
            asyncio.create_task(self._pump_answers(connection, answers)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self._connections.discard(connection)
        connection.close()
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump_commands(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        frames, traffic = FrameReader(begins_with=PREFACE), connection.traffic
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                for each in frames.feed(data) if traffic is not None else [data]:
                    commands = traffic.commands_in(each) if traffic is not None and isinstance(each, Frame) else []
                    await self._pass_commands(connection, each, commands)

    async def _pass_commands(self, connection: Connection, each: bytes | Frame, commands: list[Command]) -> None:
        if commands and not self._may_command.is_set():
            self._num_held += 1
            try:
                await self._may_command.wait()
            finally:
                self._num_held -= 1
        if connection.is_closed:
            return
        # Sent at once, unless the server is slow to read.
        connection.server.write(each.data if isinstance(each, Frame) else each)
        if commands and connection.traffic is not None:
            connection.traffic.note_passed(commands)
            self._spring(commands)
        await connection.server.drain()

    def _spring(self, commands: list[Command]) -> None:
        if self._ambush is not None and any(map(self._ambush.wanted, commands)):
            strike, self._ambush = self._ambush.strike, None
            self.hold_answers()
            strike()

    async def _pump_answers(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        frames, traffic = FrameReader(), connection.traffic
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                for each in frames.feed(data) if traffic is not None else [data]:
                    answered = traffic.note_answers(each) if traffic is not None and isinstance(each, Frame) else []
                    await self._may_answer.wait()
                    if connection.is_closed:
                        return
                    connection.client.write(self._answer(each, answered))
                    await connection.client.drain()

    def _answer(self, each: bytes | Frame, answered: list[int]) -> bytes:
        if not isinstance(each, Frame):
            return each
        if answered and self._forge is not None:
            forge, self._forge = self._forge, None
            return data_frame(each.stream, forge(answered))
        return each.data
