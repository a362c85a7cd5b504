"""Ray clusters on one machine: each node is a pid namespace, which ends as a whole, as a machine does."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from paceline.ray.process import MODULES
from paceline.rpc.health import instance_at, is_serving

GCS = "127.0.0.1:6399"
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# Ray finds no other machine, stores little and reports nothing.
SMALL = ("--object-store-memory", "100000000", "--disable-usage-stats")
START_TIMEOUT_S = 120.0


def variables(folder: Path) -> dict[str, str]:
    """The GCS keeps what it knows in a folder, and nodes survive without it for five minutes."""
    token = folder / "token"
    if not token.exists():
        # Else Ray would make one in the user's home.
        token.write_text(secrets.token_hex(32))
    return os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
        "TMPDIR": str(folder),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(folder / "gcs"),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    }


class Node:
    def __init__(self, ip: str, folder: Path, *flags: str) -> None:
        self.ip = ip
        self._log = folder / f"{ip}.log"
        log = self._log.open("wb")
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--node-ip-address", ip, *SMALL, *flags]
        self._process = subprocess.Popen([*NAMESPACE, *ray], stdout=log, stderr=log, env=variables(folder))

    def wait_started(self) -> None:
        """One after another: nodes that start at once on one machine write to the same files."""

        def is_started() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return "Ray runtime started" in self._log.read_text()

        wait_until(is_started, f"the node {self.ip}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def deploy(self, config: Path, folder: Path) -> None:
        """Runs `serve run` on this node; returns when all applications run."""
        # The namespace's first process is unshare's child.
        inside = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]
        serve = [str(Path(sys.executable).with_name("serve")), "run", "--non-blocking", "--address", GCS, str(config)]
        command = ["nsenter", "--target", inside, "--pid", "--mount", f"--wdns={os.getcwd()}", *serve]
        with (folder / "serve.log").open("ab") as log:
            subprocess.run(command, stdout=log, stderr=log, env=variables(folder), check=True, timeout=START_TIMEOUT_S)


def started(ip: str, folder: Path, *flags: str) -> Node:
    node = Node(ip, folder, *flags)
    try:
        node.wait_started()
    except BaseException:
        node.kill()
        raise
    return node


def start_head(folder: Path, num_cpus: int = 0) -> Node:
    (folder / "gcs").mkdir(exist_ok=True)
    return started(
        "127.0.0.1",
        folder,
        "--head",
        "--port",
        GCS.rpartition(":")[2],
        "--num-cpus",
        str(num_cpus),
        "--include-dashboard",
        "false",
    )


def start_worker(ip: str, folder: Path, **resources: float) -> Node:
    return started(ip, folder, "--address", GCS, "--num-cpus", "4", "--resources", json.dumps(resources))


@contextlib.contextmanager
def ending(nodes: list[Node]) -> Iterator[None]:
    try:
        yield
    finally:
        for node in nodes:
            node.kill()


def application(
    role: str, num_replicas: int = 1, resources: dict[str, float] | None = None, **args: Any
) -> dict[str, Any]:
    options = {"num_cpus": 0.1, "resources": resources or {}}
    deployment = {"name": role, "num_replicas": num_replicas, "max_surge_percent": 100, "ray_actor_options": options}
    return {
        "name": role, "route_prefix": None, "import_path": f"paceline.ray.applications:{role}", "args": args, "deployments": [deployment],
    }  # fmt: skip


def write_config(path: Path, *applications: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": list(applications)}))
    return path


def processes(role: str) -> dict[str, int]:
    """Returns the services of a role that serve: pids by address."""
    return {address: pid for address, pid in started_processes(role).items() if _is_up(role, address)}


def started_processes(role: str) -> dict[str, int]:
    """Returns also those that do not serve yet, or no longer."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if words[1:3] == ["-m", MODULES[role]] and "--listen" in words:
            found[words[words.index("--listen") + 1]] = int(pid)
    return found


def _is_up(role: str, address: str) -> bool:
    return instance_at(address, 1.0) is not None if role == "gateway" else is_serving(address, 1.0)


def supervisor_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def raylet_of(ip: str) -> int:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if words[0].endswith("/raylet") and f"--node_ip_address={ip}" in words:
                return int(pid)
    raise AssertionError(f"no raylet of {ip}")


def wait_until(is_so: Callable[[], object], what: str, timeout_s: float = START_TIMEOUT_S) -> float:
    """Returns the seconds that it took."""
    start_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - start_s < timeout_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - start_s
