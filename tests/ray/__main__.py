"""What tests run in a network namespace of their own: `python -m tests.ray SCENARIO FOLDER`; prints figures as JSON."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from paceline.rpc.channel import NO_TLS
from paceline.rpc.tls import Tls
from tests.certificates import Authority
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.ray.cluster import (
    START_TIMEOUT_S,
    Node,
    application,
    ending,
    processes,
    raylet_of,
    start_head,
    start_worker,
    started_processes,
    supervisor_of,
    variables,
    wait_until,
    write_config,
)  # fmt: skip
from tests.ray.traffic import Traffic

ROLES = ("target", "draft", "coordinator", "gateway")
SERVE_YAML = Path(__file__).parent.parent.parent / "deploy" / "ray" / "serve.yaml"
Figures = dict[str, float]


def settings_of(flags: tuple[str, ...]) -> dict[str, str]:
    return {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }


def pss_mib() -> float:
    """Of all processes in the namespace."""
    total = 0
    for file in Path("/proc").glob("[0-9]*/smaps_rollup"):
        with contextlib.suppress(OSError):
            total += sum(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith("Pss:"))
    return total / 1024


def services() -> int:
    return sum(len(processes(role)) for role in ROLES)


def ask(gateway: str, tls: Tls = NO_TLS) -> bool:
    """Whether a token comes."""
    connection = http.client.HTTPConnection(gateway, timeout=30)
    body = json.dumps({"prompt": "Why is the sky blue?", "max_tokens": 1})
    try:
        if tls:
            connection.connect()
            connection.sock = tls.client_context().wrap_socket(connection.sock, server_hostname=tls.server_name)
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def documented(folder: Path) -> Figures:
    """The command of the documentation, until its first token; then Ctrl-C."""
    start_s = time.monotonic()
    with (folder / "serve.log").open("wb") as log:
        command = [str(Path(sys.executable).with_name("serve")), "run", str(SERVE_YAML)]
        environment = {name: value for name, value in variables(folder).items() if "gcs" not in name}
        ray = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        wait_until(lambda: ray.poll() is not None or ask("127.0.0.1:8000"), "a token")
        figures = {"first token after s": time.monotonic() - start_s, "MiB": pss_mib()}
        ray.send_signal(signal.SIGINT)
        start_s = time.monotonic()
        ray.wait(START_TIMEOUT_S)
        return {
            **figures,
            "ended after s": time.monotonic() - start_s,
            "services left": services(),
            "folders left": len(list(folder.glob("paceline-ray-*"))),
        }
    finally:
        ray.kill()
        ray.wait()


def write_cluster(folder: Path, **target: str) -> Path:
    """`target`: more of its settings."""
    lock = {"compute_lock_file": str(folder / "compute.lock")}
    return write_config(
        folder / "serve.yaml",
        application("target", 2, target=settings_of(UNLIKE_TARGET) | lock | target),
        application("draft", 1, {"front": 0.1}, draft=settings_of(UNLIKE_DRAFT) | lock),
        application("coordinator", 2, coordinator={"suffix_cache_tokens": 0}),
        application("gateway", 1, {"front": 0.1}, port=8000),
    )


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[list[Node], Figures]]:
    """A head without services; gateway and draft on a node; targets and coordinators there and on another."""
    config = write_cluster(folder)
    start_s = time.monotonic()
    nodes: list[Node] = []
    with ending(nodes):
        nodes.append(start_head(folder))
        nodes.append(start_worker("127.0.0.2", folder, front=1))
        nodes.append(start_worker("127.0.0.3", folder))
        nodes_s = time.monotonic() - start_s
        nodes[0].deploy(config, folder)
        wait_until(lambda: ask("127.0.0.2:8000"), "a token")
        yield nodes, {"nodes after s": nodes_s, "first token after s": time.monotonic() - start_s, "MiB": pss_mib()}


def chaos(folder: Path) -> Figures:
    """Kills a target's process, a supervisor, a draft, a node and the head, and replaces targets, while answers stream."""
    with cluster(folder) as (nodes, figures):
        traffic = Traffic("127.0.0.2:8000")

        def during(what: str, kill: Callable[[], None], role: str, count: int) -> None:
            before = set(processes(role))
            traffic.take_gap_s()
            kill()
            took_s = wait_until(
                lambda: (now := set(processes(role))) - before and len(now) >= count, f"{what}: another {role}"
            )
            time.sleep(3.0)
            figures[f"{what}: replaced after s"], figures[f"{what}: longest gap s"] = took_s, traffic.take_gap_s()

        def roll(head: Node) -> None:
            """Replaces both targets in order, as a change of their settings does."""
            before = set(processes("target"))
            traffic.take_gap_s()
            head.deploy(write_cluster(folder, log_level="warning"), folder)
            figures["rolling: over after s"] = wait_until(
                lambda: len(now := set(processes("target"))) == 2 and not now & before, "two other targets", 240.0
            )
            figures["rolling: longest gap s"] = traffic.take_gap_s()

        def at(role: str, ip: str) -> int:
            return next(pid for address, pid in processes(role).items() if address.startswith(f"{ip}:"))

        try:
            supervisor = supervisor_of(at("target", "127.0.0.3"))
            during("process", lambda: os.kill(at("target", "127.0.0.3"), signal.SIGKILL), "target", 2)
            figures["process: another supervisor"] = float(supervisor_of(at("target", "127.0.0.3")) != supervisor)
            during("supervisor", lambda: os.kill(supervisor_of(at("target", "127.0.0.2")), signal.SIGKILL), "target", 2)
            roll(nodes[0])
            during("draft", lambda: os.kill(at("draft", "127.0.0.2"), signal.SIGKILL), "draft", 1)
            lost = [role for role in ("target", "coordinator") if any("127.0.0.3" in each for each in processes(role))]
            figures["node: roles there"] = len(lost)
            during("node", lambda: os.kill(raylet_of("127.0.0.3"), signal.SIGKILL), lost[0], 2)
            nodes.append(start_worker("127.0.0.3", folder))
            nodes[0].kill()
            time.sleep(20.0)
            figures["head away: longest gap s"] = traffic.take_gap_s()
            nodes[0] = start_head(folder)
            # Ray is back when it replaces a target.
            during("target after the head", lambda: os.kill(at("target", "127.0.0.2"), signal.SIGKILL), "target", 2)
        finally:
            traffic.stop()
        figures["answers"], figures["failures"] = traffic.num_answers, len(traffic.failures)
        print(*traffic.failures[:3], sep="\n", file=sys.stderr)
    wait_until(lambda: services() == 0, "no service is left when its node is gone")
    return figures


def scaling(folder: Path) -> Figures:
    """Answers that need two targets' cache, then one's."""
    policy = {"policy_function": "paceline.ray.scaling:by_load"}
    delays = {"metrics_interval_s": 1, "look_back_period_s": 4, "upscale_delay_s": 1, "downscale_delay_s": 5}
    # Of two answers.
    target = application("target", target=settings_of(UNLIKE_TARGET) | {"kv_cache_memory": "256KiB"})
    deployment = target["deployments"][0]
    del deployment["num_replicas"]
    deployment["autoscaling_config"] = {"min_replicas": 1, "max_replicas": 2, "policy": policy, **delays}
    coordinator = application("coordinator", coordinator={"draft": "none", "suffix_cache_tokens": 0})
    config = write_config(folder / "serve.yaml", target, coordinator, application("gateway", port=8000))
    with ending(nodes := [start_head(folder, num_cpus=4)]):
        nodes[0].deploy(config, folder)
        wait_until(lambda: ask("127.0.0.1:8000"), "a token")
        figures = {"targets at first": float(len(processes("target")))}
        one = Traffic("127.0.0.1:8000", num_streams=1)
        try:
            more = Traffic("127.0.0.1:8000")
            try:
                figures["two after s"] = wait_until(lambda: len(processes("target")) == 2, "a second target")
            finally:
                more.stop()
            figures["one after s"] = wait_until(lambda: len(started_processes("target")) == 1, "a single target")
        finally:
            one.stop()
    failures = one.failures + more.failures
    print(*failures[:3], sep="\n", file=sys.stderr)
    return {**figures, "answers": one.num_answers + more.num_answers, "failures": len(failures)}


def secured(folder: Path) -> Figures:
    """TLS between all, and to the gateway, with a certificate that names no address."""
    tls_folder = folder / "tls"
    files = Authority(tls_folder).issue("services", "subjectAltName=DNS:paceline").tls
    arguments = {"tls": str(tls_folder), "tls_name": "paceline"}
    config = write_config(
        folder / "serve.yaml",
        application("target", **arguments, target=settings_of(UNLIKE_TARGET)),
        application("draft", **arguments, draft=settings_of(UNLIKE_DRAFT)),
        application("coordinator", **arguments),
        application("gateway", **arguments, port=8000),
    )
    tls = replace(files, server_name="paceline")
    with ending(nodes := [start_head(folder, num_cpus=4)]):
        nodes[0].deploy(config, folder)
        wait_until(lambda: ask("127.0.0.1:8000", tls), "a token")
        # They answer no one who speaks in the clear.
        return {"services in the clear": services()}


SCENARIOS = {"documented": documented, "chaos": chaos, "scaling": scaling, "secured": secured}


def main() -> None:
    scenario, folder = SCENARIOS[sys.argv[1]], Path(sys.argv[2])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print(json.dumps({name: round(value, 2) for name, value in scenario(folder).items()}))


if __name__ == "__main__":
    main()
