"""`paceline up` as a process: whatever ends it, nothing it started goes on; and it knows its own services from others."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from paceline.cli.services import Services, make_socket_folder
from paceline.cli.stack import make_stack
from paceline.client import Client
from paceline.errors import ConfigError, Unauthenticated, Unreachable
from paceline.keys import make_key
from paceline.rpc.channel import check_address
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.certificates import made_as_documented
from tests.gateway.conftest import free_port
from tests.observability.collector import Collector

pytestmark = pytest.mark.slow

TINY = (
    "--target-model",
    "dummy:tiny",
    "--draft-model",
    "dummy:tiny",
    "--dtype",
    "float32",
    "--kv-cache-memory",
    "16MiB",
)
TIMEOUT_S = 120.0
ROLES = ("draft", "target", "coordinator")
BY_MODEL = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=2)
MODULES = ("draft_server", "target_server", "coordinator", "gateway")


@contextlib.contextmanager
def running_up(folder: Path, address: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    program = "from paceline.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "up",
        *TINY,
        "--listen",
        address,
        "--http-listen",
        f"unix:{folder}/gateway.sock",
        *flags,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(TIMEOUT_S)


def services_of(folder: Path) -> list[int]:
    """Ids of service processes whose sockets lie below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if str(folder) in " ".join(words) and any(module in words for module in MODULES):
                    found.append(int(entry.name))
    return found


def wait_for(condition) -> bool:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.05)
    return False


def wait_ready(process: subprocess.Popen[str], address: str, folder: Path) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready {address} unix:{folder}/gateway.sock\n"


@pytest.mark.parametrize("name", ["x" * 80, "a,b", "a#b", "a?b", "a%20b", "a\nb"])
async def test_no_socket_is_chosen_that_grpc_cannot_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    services = Services(make_stack(), lambda service, line: None)
    try:
        for service, address in services.addresses.items():
            check_address(service, address)
    finally:
        await services.stop()
    assert list((tmp_path / name).iterdir()) == []


def test_a_folder_for_sockets_that_cannot_be_made_is_one_line_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"^can't make a folder for sockets: .*TMPDIR"):
        make_socket_folder("paceline-")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    with running_up(tmp_path, f"unix:{tmp_path}/coordinator.sock") as process:
        assert wait_for(lambda: len(services_of(tmp_path)) == 1), "the model servers come first"
        process.send_signal(number)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output) == (0, "")
        assert services_of(tmp_path) == []


def test_several_of_a_kind_start_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/coordinator.sock"
    with running_up(tmp_path, address, "--targets", "2", "--drafts", "2") as process:
        wait_ready(process, address, tmp_path)
        before = services_of(tmp_path)
        assert len(before) == 6
        with Client(address) as client:
            expected = client.complete([1, 2, 3], SamplingParams(max_tokens=20), BY_MODEL).token_ids
            for victim in before:
                if "target_server" in Path(f"/proc/{victim}/cmdline").read_text():
                    os.kill(victim, signal.SIGKILL)
                    break
            assert client.complete([1, 2, 3], SamplingParams(max_tokens=20), BY_MODEL).token_ids == expected
        assert wait_for(lambda: len(services_of(tmp_path)) == 6 and victim not in services_of(tmp_path))


def test_the_services_of_one_that_is_killed_follow_it(tmp_path: Path) -> None:
    with running_up(tmp_path, f"unix:{tmp_path}/coordinator.sock") as process:
        assert wait_for(lambda: len(services_of(tmp_path)) == 1)
        process.kill()
        assert wait_for(lambda: not services_of(tmp_path))


def test_keys_are_the_coordinators_traces_everyones_and_the_address_one_ups_alone(tmp_path: Path) -> None:
    address, keys, collector = f"unix:{tmp_path}/coordinator.sock", tmp_path / "keys", Collector()
    key = make_key(keys, "alice")
    with running_up(tmp_path, address, "--api-keys", str(keys), "--traces", collector.address) as process:
        wait_ready(process, address, tmp_path)
        with Client(address, key) as client:
            client.complete("t1", SamplingParams(max_tokens=4, ignore_eos=True), BY_MODEL)
        with Client(address, "another") as client, pytest.raises(Unauthenticated):
            client.describe()
        with running_up(tmp_path, address) as second:
            _, error = second.communicate(timeout=TIMEOUT_S)
            assert second.returncode == 1
            assert f"a coordinator already serves at {address}" in error
            assert "--listen" in error
        # Both model servers are in one process.
        assert len(services_of(tmp_path)) == 3, "those of the first"
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT_S)
    collector.close()
    assert "--api-key-file FILE" in log, "the hint says what a command needs"
    assert key not in log
    assert all(f"{service}: traces go to http://{collector.address}" in log for service in (*ROLES, "gateway"))
    # What a service has not sent when it is ended, it sends then.
    assert {span.service for span in collector.spans} == {f"paceline-{role}" for role in ROLES}


def test_certificates_made_as_documented_are_the_coordinators_and_the_gateways(tmp_path: Path) -> None:
    made = made_as_documented(tmp_path)
    services, me = made["services"], made["me"]
    address, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    files = ("--tls-cert", services.cert, "--tls-key", services.key, "--tls-ca", services.ca, "--tls-client-ca", me.ca)
    with running_up(tmp_path, address, "--http-listen", http, *map(str, files)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready {address} https://{http}\n"
        with Client(address, tls=me.tls) as client:
            text = client.complete("t1 t2", SamplingParams(max_tokens=4), raw=True).text
        with httpx2.Client(verify=me.tls.client_context(), trust_env=False) as browser:
            body = {"prompt": "t1 t2", "max_tokens": 4, "temperature": 0}
            answer = browser.post(f"https://{http}/v1/completions", json=body, timeout=TIMEOUT_S)
            assert answer.json()["choices"][0]["text"] == text
        with Client(address) as client, pytest.raises(Unreachable):
            client.describe()
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT_S)
    assert f"PACELINE_TLS_CERT={services.cert} PACELINE_TLS_KEY={services.key} paceline generate" in log
    assert f"--tls-ca {services.ca}" in log, "it says what a command needs"


@pytest.mark.parametrize("flags", [("--tls-ca", "ca.pem"), ("--tls-cert", "services.pem", "--tls-key", "services.key")])
def test_certificates_without_their_authority_or_the_other_way_round_are_refused(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    made_as_documented(tmp_path)
    with running_up(tmp_path, f"unix:{tmp_path}/coordinator.sock", *flags) as process:
        _, error = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, error.count("\n")) == (2, 1)
    assert "--tls-ca needs --tls-cert" in error or "--tls-ca is missing" in error


def test_one_address_for_coordinator_and_gateway_is_refused(paceline) -> None:
    ran = paceline("up", "--listen", "127.0.0.1:50099", "--http-listen", "127.0.0.1:50099")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: --http-listen is '127.0.0.1:50099'; it must be another address than --listen")
