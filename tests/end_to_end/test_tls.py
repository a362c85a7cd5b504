"""All four services with certificates: each asks its callers for one, and an environment with a proxy changes nothing."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx2
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paceline.cli import main
from paceline.client import AsyncClient, Client
from paceline.errors import Unavailable
from paceline.reloaded import LOOK_INTERVAL_S
from paceline.rpc.channel import NO_TLS, open_channel
from paceline.rpc.health import instance_at, is_serving
from paceline.rpc.tls import Tls
from paceline.sampling_params import SamplingParams
from tests.certificates import Authority, Issued, name_at
from tests.conftest import TINY
from tests.gateway.conftest import free_port
from tests.hosted import Host
from tests.services import Trio

pytestmark = pytest.mark.slow

SHORT = SamplingParams(max_tokens=4)
BODY: dict[str, Any] = {"prompt": "t1 t2", "max_tokens": 4, "temperature": 0}
TIMEOUT_S = 30.0
GRPC = ("draft_server", "target_server", "coordinator")
SERVICES = (*GRPC, "gateway")
METHODS = {
    "draft_server": "/paceline.v1.Model/Describe",
    "target_server": "/paceline.v1.Model/Describe",
    "coordinator": "/paceline.v1.Generation/Describe",
}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
# Nobody listens there.
PROXY = "http://127.0.0.1:9"

each_service = pytest.mark.parametrize("service", SERVICES)


@dataclass(slots=True)
class Encrypted:
    """Four services: where each listens, and with which files."""

    addresses: dict[str, str]
    files: dict[str, Issued]
    mine: Issued
    ours: Authority
    theirs: Authority
    log: Path
    # Of every key that a service had at some time.
    key_lines: list[str]

    @property
    def url(self) -> str:
        return f"https://{self.addresses['gateway']}"


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(folder / "ours"), Authority(folder / "theirs")
    files = {service: ours.issue(service) for service in SERVICES}
    addresses = {service: f"127.0.0.1:{free_port()}" for service in SERVICES}
    made = Encrypted(addresses, files, ours.issue("me"), ours, theirs, folder / "host.log", [])
    with pytest.MonkeyPatch.context() as environment:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            environment.setenv(name, PROXY)
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            environment.delenv(name, raising=False)
        host = Host(folder)
    for issued in (made.mine, *files.values()):
        made.key_lines.extend(issued.key_lines)
    for service, flags in {
        "draft_server": TINY,
        "target_server": TINY,
        "coordinator": ("--draft", addresses["draft_server"], "--target", addresses["target_server"]),
        "gateway": ("--coordinators", addresses["coordinator"]),
    }.items():
        own = files[service]
        serving = ("--tls-cert", own.cert, "--tls-key", own.key, "--tls-client-ca", ours.ca)
        calling = ("--servers-tls-ca", ours.ca, "--servers-tls-cert", own.cert, "--servers-tls-key", own.key)
        all_flags = (*flags, *serving, *(calling if service in ("coordinator", "gateway") else ()))
        host.start(service, "--listen", addresses[service], *map(str, all_flags))
    yield made
    host.close()


def browser_of(tls: Tls) -> httpx2.AsyncClient:
    context: ssl.SSLContext | bool = tls.client_context() if tls else True
    return httpx2.AsyncClient(verify=context, trust_env=False, timeout=TIMEOUT_S)


async def test_text_comes_by_grpc_and_by_https(encrypted: Encrypted, tiny_trio: Trio) -> None:
    async with AsyncClient(tiny_trio.address) as plain:
        expected = (await plain.complete("t1 t2", SHORT, raw=True)).text
    async with AsyncClient(encrypted.addresses["coordinator"], tls=encrypted.mine.tls) as client:
        assert (await client.complete("t1 t2", SHORT, raw=True)).text == expected
    async with browser_of(encrypted.mine.tls) as http:
        answer = await http.post(f"{encrypted.url}/v1/completions", json=BODY)
        assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, expected)
        assert (await http.get(f"{encrypted.url}/ready")).status_code == 200


def strangers(encrypted: Encrypted) -> dict[str, Tls]:
    """Who must not get in."""
    mine, theirs = encrypted.mine, encrypted.theirs.issue("stranger")
    expired = encrypted.ours.issue_expired("late")
    return {
        "plaintext": NO_TLS,
        "no certificate": Tls(ca=mine.ca),
        "another authority's certificate": Tls(theirs.cert, theirs.key, mine.ca),
        "an expired certificate": expired.tls,
        "does not trust the server": Tls(mine.cert, mine.key, theirs.ca),
    }


@pytest.mark.parametrize("service", GRPC)
async def test_who_has_no_certificate_gets_no_answer_from_any_method(encrypted: Encrypted, service: str) -> None:
    address = encrypted.addresses[service]
    paths = (METHODS[service], "/grpc.health.v1.Health/Check", "/nobody/Knows")
    for who, files in {**strangers(encrypted), "me": encrypted.mine.tls}.items():
        async with open_channel(address, files) as channel:
            for path in paths:
                code = await channel.unary_unary(path)(b"", timeout=TIMEOUT_S).code()
                expected = grpc.StatusCode.UNAVAILABLE
                if who == "me":
                    expected = grpc.StatusCode.UNIMPLEMENTED if path == "/nobody/Knows" else grpc.StatusCode.OK
                assert code is expected, (who, path)
        assert await asyncio.to_thread(is_serving, address, tls=files) is (who == "me"), who


async def test_who_has_no_certificate_gets_no_answer_from_the_gateway(encrypted: Encrypted) -> None:
    address = encrypted.addresses["gateway"]
    for who, files in strangers(encrypted).items():
        scheme = "https" if files else "http"
        async with browser_of(files) as http:
            for path in ("/", "/health", "/v1/models"):
                with pytest.raises(httpx2.TransportError):
                    await http.get(f"{scheme}://{address}{path}")
        assert await asyncio.to_thread(instance_at, address, tls=files) is None, who
    assert await asyncio.to_thread(instance_at, address, tls=encrypted.mine.tls) == ""


def test_the_gateway_looks_at_the_certificate_of_every_connection(encrypted: Encrypted) -> None:
    """A resumed session would be one that nobody looks at."""
    context, session = encrypted.mine.tls.client_context(), None
    host, _, port = encrypted.addresses["gateway"].rpartition(":")
    for _ in range(2):
        raw = socket.create_connection((host, int(port)), TIMEOUT_S)
        with raw, context.wrap_socket(raw, server_hostname=host, session=session) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            assert not connection.session_reused
            session = connection.session


@pytest.mark.parametrize("service", GRPC)
async def test_reflection_answers_only_where_it_was_asked_for(host: Host, encrypted: Encrypted, service: str) -> None:
    async with open_channel(encrypted.addresses[service], encrypted.mine.tls) as channel:
        # As a call of one message: a stream's status is lost where it comes before the message went out.
        assert await channel.unary_unary(REFLECTION)(b"", timeout=TIMEOUT_S).code() is grpc.StatusCode.UNIMPLEMENTED
    flags = TINY
    if service == "coordinator":
        files = encrypted.mine
        flags = (
            "--draft", "none", "--target", encrypted.addresses["target_server"],
            "--servers-tls-ca", str(files.ca), "--servers-tls-cert", str(files.cert), "--servers-tls-key", str(files.key),
        )  # fmt: skip
    told = host.start(service, *flags, "--reflection")
    async with open_channel(told.address) as channel:
        assert await channel.unary_unary(REFLECTION)(b"", timeout=TIMEOUT_S).code() is not grpc.StatusCode.UNIMPLEMENTED
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = await reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request])).read()
    assert METHODS[service].split("/")[1] in [each.name for each in answer.list_services_response.service]
    told.stop()


@each_service
async def test_renewed_files_are_taken_without_a_restart(encrypted: Encrypted, service: str) -> None:
    address, protocol = encrypted.addresses[service], "http/1.1" if service == "gateway" else "h2"

    def name_shown() -> str:
        return name_at(address, encrypted.mine.tls, protocol)

    assert await asyncio.to_thread(name_shown) == service
    renewed = encrypted.ours.issue(f"{service} renewed")
    encrypted.key_lines.extend(renewed.key_lines)
    encrypted.files[service].replace(renewed)
    deadline_s = time.monotonic() + LOOK_INTERVAL_S + TIMEOUT_S
    while await asyncio.to_thread(name_shown) != f"{service} renewed":
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.2)
    # The ways between the services still lead somewhere, and the gateway makes a new one.
    async with browser_of(encrypted.mine.tls) as http:
        assert (await http.post(f"{encrypted.url}/v1/completions", json=BODY)).status_code == 200


def test_no_line_of_a_key_is_in_any_log(encrypted: Encrypted) -> None:
    log = encrypted.log.read_text(errors="replace")
    assert len(encrypted.key_lines) > len(SERVICES)
    assert [line for line in encrypted.key_lines if line in log] == []
    assert log.count("mutual TLS") == len(SERVICES)


Run = Callable[..., int]


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


def test_commands_take_certificates_by_flag_and_by_environment(
    encrypted: Encrypted, run_command: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = encrypted.mine
    command = ("generate", "t1 t2", "--max-tokens", "4", "--address", encrypted.addresses["coordinator"])
    flags = ("--tls-ca", str(mine.ca))
    assert run_command(*command, *flags) == 1
    assert "--tls-ca or $PACELINE_TLS_CA turns on TLS" in capsys.readouterr().err
    monkeypatch.setenv("PACELINE_TLS_CERT", str(mine.cert))
    assert run_command(*command, *flags) == 1
    assert "PACELINE_TLS_CERT and PACELINE_TLS_KEY need each other" in capsys.readouterr().err
    monkeypatch.setenv("PACELINE_TLS_KEY", str(mine.key))
    assert run_command(*command, *flags) == 0
    text = capsys.readouterr().out
    monkeypatch.setenv("PACELINE_TLS_CA", str(mine.ca))
    assert run_command(*command) == 0
    assert capsys.readouterr().out == text
    with Client(encrypted.addresses["coordinator"]) as client:
        assert client.describe().max_num_seqs > 0
    with Client(encrypted.addresses["coordinator"], tls=Tls()) as client, pytest.raises(Unavailable):
        client.describe()


@pytest.mark.parametrize("service", ["target_server", "gateway"])
def test_container_health_checks_find_certificates_in_the_environment(encrypted: Encrypted, service: str) -> None:
    scheme = "https://" if service == "gateway" else ""
    command = [sys.executable, "-m", "paceline.rpc.health", f"{scheme}{encrypted.addresses[service]}"]
    mine = encrypted.mine
    files = {"PACELINE_TLS_CA": mine.ca, "PACELINE_TLS_CERT": mine.cert, "PACELINE_TLS_KEY": mine.key}
    environment = os.environ | {name: str(path) for name, path in files.items()}
    assert subprocess.run(command, env=environment, check=False, timeout=TIMEOUT_S).returncode == 0
    assert subprocess.run(command, check=False, timeout=TIMEOUT_S, capture_output=True).returncode == 1
