"""Runs a client against a real gateway in front of a scripted coordinator, and judges what happened."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.__main__ import GatewayServer
from gateway.app import make_app
from gateway.config import GatewaySettings
from gateway.http import HttpConnection
from tests.clients.clients import DONE, Client
from tests.clients.scripted import BLOCK_TOKENS, MODEL, HttpError, Script, ScriptedCoordinator, Turn
from tests.gateway.fake_coordinator import serve
from tests.services import free_port

TIMEOUT_S = 150
SILENCE_S = 40
REASONING, TEXT = "Two files are to be written.", "I write both."
HOST = "127.0.0.1"
# Texts by the file that the client has to write them to.
ONE, TWO = {"one.txt": "first"}, {"one.txt": "first", "two.txt": "second"}
# Makes an answer that lets the client write these files.
Edit = Callable[..., Turn]


@dataclass(frozen=True, slots=True)
class Situation:
    # Comes before an answer that says DONE.
    turns: Callable[[Edit], list[Turn]]
    files: Mapping[str, str] = field(default_factory=lambda: ONE)
    # Requests that the gateway answers with an error.
    num_refused: int = 0


SITUATIONS = {
    "call": Situation(lambda edit: [edit(ONE)]),
    "two calls": Situation(lambda edit: [edit(TWO, reasoning=REASONING, text=TEXT)], TWO),
    "cut": Situation(lambda edit: [edit(ONE, is_cut=True), edit(ONE)]),
    "503": Situation(lambda edit: [Turn(fault=HttpError.UNAVAILABLE), edit(ONE)], num_refused=1),
    "break": Situation(lambda edit: [Turn("I begin.", fault=HttpError.BREAKS), edit(ONE)]),
    "silence": Situation(lambda edit: [edit(ONE, silence_s=SILENCE_S)]),
    "too long": Situation(lambda edit: [edit(ONE), Turn(fault=HttpError.TOO_LONG)], num_refused=1),
}


@dataclass(slots=True)
class Exchange:
    path: str
    body: Any = None
    status: int = 0
    answer: bytes = b""
    # Parts of the answer sent while the coordinator was silent.
    num_beats: int = 0


@dataclass(slots=True)
class Recorder:
    """Keeps what goes in and out of an app."""

    app: ASGIApp
    coordinator: ScriptedCoordinator
    exchanges: list[Exchange] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange, parts = Exchange(scope["path"]), list[bytes]()
        self.exchanges.append(exchange)

        async def receive_noted() -> Message:
            message = await receive()
            parts.append(message.get("body", b""))
            with contextlib.suppress(ValueError):
                exchange.body = json.loads(b"".join(parts))
            return message

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            else:
                exchange.answer += message.get("body", b"")
                exchange.num_beats += self.coordinator.script.is_silent
            await send(message)

        await self.app(scope, receive_noted, send_noted)


@dataclass(slots=True)
class Run:
    """What a client did."""

    # None if it had to be ended.
    status: int | None
    output: str
    exchanges: list[Exchange]
    script: Script
    # Of the project.
    files: dict[str, str]


class Harness:
    def __init__(self, url: str, recorder: Recorder, coordinator: ScriptedCoordinator, folder: Path) -> None:
        """`folder`: where clients are installed."""
        self._url, self._recorder, self._coordinator, self._folder = url, recorder, coordinator, folder

    async def run(self, client: Client, situation: Situation) -> Run:
        """Gives the client a fresh home and project, and processes that end with it."""
        with tempfile.TemporaryDirectory(prefix="client-") as name:
            home, project = Path(name) / "home", Path(name) / "project"
            home.mkdir()
            project.mkdir()
            turns = situation.turns(lambda files, **more: client.edit(project, files, **more))
            script = self._coordinator.script = Script([*turns, Turn(DONE)], client.has_tools)
            self._recorder.exchanges = exchanges = list[Exchange]()
            command, environment = client.prepare(self._folder, home, self._url, MODEL)
            process = await asyncio.create_subprocess_exec(
                "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command, cwd=project, env=environment,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            try:
                output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
                status = process.returncode
            except TimeoutError:
                process.kill()
                await process.wait()
                output, status = b"", None
            files = {path.name: path.read_text() for path in project.iterdir() if path.is_file()}
        return Run(status, output.decode(errors="replace"), exchanges, script, files)


def judge(run: Run, client: Client, name: str) -> str | None:
    """Returns what is wrong. `name`: the situation's."""
    situation = SITUATIONS[name]
    if run.status is None:
        return f"it did not end within {TIMEOUT_S} s"
    refused = [f"{each.path} {each.status}" for each in run.exchanges if each.status >= 400]
    if len(refused) != situation.num_refused:
        return f"requests refused: {', '.join(refused) or 'none'}"
    # A conversation that was too long is compacted.
    if client.has_tools and name != "too long" and len(run.script.prompts) > 1:
        first, second = run.script.prompts[:2]
        if second.num_cached < len(first.ids) // BLOCK_TOKENS * BLOCK_TOKENS:
            return f"the second prompt begins with {second.num_cached} of the first one's {len(first.ids)} tokens"
    if name == "silence" and not any(each.num_beats > 1 for each in run.exchanges):
        return "no sign of life during the silence"
    written = {file: run.files.get(file, "").strip() for file in situation.files}
    if broken := [file for file, text in written.items() if text not in ("", situation.files[file])]:
        return f"written in part: {', '.join(broken)}"
    said = client.gives_up.get(name, DONE)
    if said not in run.output:
        return f"it does not say: {said}"
    if name in client.gives_up:
        return None
    if run.status != 0:
        return f"exit status {run.status}"
    missing = [file for file, text in written.items() if not text]
    return f"not written: {', '.join(missing)}" if missing else None


@contextlib.asynccontextmanager
async def harness(folder: Path) -> AsyncIterator[Harness]:
    with tempfile.TemporaryDirectory() as sockets:
        coordinator, address = ScriptedCoordinator(), f"unix:{sockets}/coordinator.sock"
        server = await serve(coordinator, address)
        # Clients learn at once that a coordinator is away.
        settings = GatewaySettings(coordinators=address, retry_timeout=0)
        recorder, port = Recorder(make_app(settings), coordinator), free_port()
        config = uvicorn.Config(
            recorder, host=HOST, port=port, http=HttpConnection, lifespan="on", ws="none", log_config=None,
            access_log=False,
        )  # fmt: skip
        gateway = GatewayServer(config)
        serving = asyncio.create_task(gateway.serve())
        while not gateway.started:
            await asyncio.sleep(0.01)
        try:
            yield Harness(f"http://{HOST}:{port}", recorder, coordinator, folder)
        finally:
            gateway.should_exit = True
            await serving
            await server.stop(1)
