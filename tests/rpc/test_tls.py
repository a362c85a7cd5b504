"""TLS between a client and a server of gRPC: who is let in, what is said to others, and files that change."""

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.config import CoordinatorSettings
from gateway.config import GatewaySettings
from paceline import reloaded
from paceline.client import AsyncClient, Client
from paceline.errors import ConfigError, PacelineError, Unavailable
from paceline.rpc.channel import NO_TLS, ReloadingChannel, open_channel
from paceline.rpc.health import is_serving
from paceline.rpc.server import Server
from paceline.rpc.tls import Tls
from paceline.settings import make_settings
from tests.certificates import Authority, Issued, name_at

TIMEOUT_S = 30.0
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "GRPC_PROXY")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture(autouse=True)
def look_at_each_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloaded, "LOOK_INTERVAL_S", 0.0)


@pytest.fixture
def served(authority: Authority) -> Issued:
    return authority.issue("server")


@pytest.fixture
def mine(authority: Authority) -> Issued:
    return authority.issue("client")


@asynccontextmanager
async def serving(files: Tls, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = Server(listen, tls=files)
    try:
        yield await server.start()
    finally:
        await server.stop(0)


async def check(channel: grpc.aio.Channel) -> None:
    request = health_pb2.HealthCheckRequest()
    await health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S)


async def refusal(address: str, files: Tls) -> str:
    """What a client of ours says. Fails if it is served."""
    async with AsyncClient(address, tls=files) as client:
        with pytest.raises(Unavailable) as caught:
            await client.describe()
    return str(caught.value)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "unix:"])
async def test_who_has_a_certificate_is_served(served: Issued, mine: Issued, listen: str, tmp_path: Path) -> None:
    async with serving(served.tls, f"unix:{tmp_path}/it.sock" if listen == "unix:" else listen) as address:
        async with open_channel(address, mine.tls) as channel:
            await check(channel)
        assert await asyncio.to_thread(is_serving, address, tls=mine.tls)


async def test_a_server_reached_by_ip_address_may_have_a_certificate_for_a_name(
    authority: Authority, mine: Issued
) -> None:
    named = authority.issue("pods", "subjectAltName=DNS:services")
    async with serving(named.tls) as address:
        assert "Hostname Verification Check failed" in await refusal(address, mine.tls)
        for name, is_theirs in (("services", True), ("others", False)):
            assert await asyncio.to_thread(is_serving, address, tls=replace(mine.tls, server_name=name)) is is_theirs
        async with open_channel(address, replace(mine.tls, server_name="services")) as channel:
            await check(channel)


async def test_without_an_authority_for_clients_nobody_needs_a_certificate(served: Issued, other: Authority) -> None:
    async with serving(Tls(served.cert, served.key)) as address:
        async with open_channel(address, Tls(ca=served.ca)) as channel:
            await check(channel)
        said = await refusal(address, Tls(ca=other.ca))
        assert "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate" in said


async def test_others_are_refused_and_told_what_may_be_missing(
    served: Issued, authority: Authority, other: Authority
) -> None:
    async with serving(served.tls) as address:
        stranger = other.issue("stranger")
        expired = authority.issue_expired("late")
        cases = [NO_TLS, Tls(ca=served.ca), Tls(stranger.cert, stranger.key, served.ca), expired.tls]
        for files in cases:
            said = await refusal(address, files)
            assert said.startswith(f"can't reach {address}: "), said
            assert not await asyncio.to_thread(is_serving, address, 2.0, tls=files), "health neither"


async def test_an_expired_certificate_of_a_server_is_called_so(authority: Authority) -> None:
    async with serving(authority.issue_expired("old").tls) as address:
        assert "CERTIFICATE_VERIFY_FAILED: certificate has expired" in await refusal(address, authority.issue("c").tls)


async def test_a_client_with_tls_does_not_speak_to_a_server_without(mine: Issued) -> None:
    async with serving(NO_TLS) as address:
        assert "WRONG_VERSION_NUMBER" in await refusal(address, mine.tls)


async def test_a_server_takes_renewed_files_for_new_connections(
    served: Issued, mine: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(served.tls) as address, open_channel(address, mine.tls) as before:
        await check(before)
        assert await asyncio.to_thread(name_at, address, mine.tls) == "server"
        # The certificate comes before its key: until both are there, the old ones serve.
        renewed = authority.issue("renewed")
        served.cert.write_bytes(renewed.cert.read_bytes())
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert await asyncio.to_thread(name_at, address, mine.tls) == "server"
        assert caplog.text.count("does not fit the certificate") == 1
        served.key.write_bytes(renewed.key.read_bytes())
        assert await asyncio.to_thread(name_at, address, mine.tls) == "renewed"
        await check(before)


async def test_a_server_takes_another_authority_for_new_connections(
    served: Issued, mine: Issued, other: Authority, tmp_path: Path
) -> None:
    followed = tmp_path / "clients.pem"
    followed.write_bytes(served.ca.read_bytes())
    async with serving(Tls(served.cert, served.key, followed)) as address:
        assert await asyncio.to_thread(is_serving, address, tls=mine.tls)
        followed.write_bytes(other.ca.read_bytes())
        stranger = other.issue("friend")
        assert await asyncio.to_thread(is_serving, address, tls=Tls(stranger.cert, stranger.key, served.ca))
        assert not await asyncio.to_thread(is_serving, address, 2.0, tls=mine.tls)


async def test_a_client_takes_renewed_files_and_its_calls_in_flight_go_on(
    served: Issued, mine: Issued, other: Authority
) -> None:
    """The authority that the server trusts changes, and so does the client's certificate."""
    async with serving(served.tls) as address:
        connection = ReloadingChannel(address, mine.tls)
        first = connection.channel
        watch = health_pb2_grpc.HealthStub(first).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert connection.channel is first
        mine.replace(other.issue("mine, renewed"))
        assert connection.channel is not first
        with pytest.raises(grpc.aio.AioRpcError):
            await check(connection.channel)
        assert not watch.done()
        await asyncio.wait_for(connection.close(), TIMEOUT_S)
        assert await asyncio.wait_for(watch.code(), TIMEOUT_S) is grpc.StatusCode.CANCELLED


def test_files_that_are_bad_are_named(served: Issued, mine: Issued, tmp_path: Path) -> None:
    nothing, garbage = tmp_path / "nothing.pem", tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    locked = tmp_path / "locked.key"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")
    cert, key, ca = str(served.cert), str(served.key), str(served.ca)
    server_cases = {
        f"--tls-cert: can't read {nothing}: No such file": {"tls_cert": nothing, "tls_key": key},
        f"--tls-key: {mine.key} does not fit the certificate in --tls-cert, {cert}": {
            "tls_cert": cert,
            "tls_key": mine.key,
        },
        f"{garbage} and {key} are not a certificate and its key in PEM form": {"tls_cert": garbage, "tls_key": key},
        "--tls-cert and --tls-key need each other": {"tls_cert": cert},
        "--tls-client-ca needs --tls-cert and --tls-key": {"tls_client_ca": ca},
        f"--tls-client-ca: {garbage} holds no certificate": {
            "tls_cert": cert,
            "tls_key": key,
            "tls_client_ca": garbage,
        },
    }
    client_cases = {
        f"--servers-tls-ca: can't read {nothing}": {"servers_tls_ca": nothing},
        "--servers-tls-cert and --servers-tls-key needs --servers-tls-ca": {
            "servers_tls_cert": cert,
            "servers_tls_key": key,
        },
        "--servers-tls-name needs --servers-tls-ca": {"servers_tls_name": "services"},
    }
    for settings in (CoordinatorSettings, GatewaySettings):
        for said, given in (server_cases | client_cases).items():
            with pytest.raises(PacelineError) as caught:
                make_settings(settings, {name: str(path) for name, path in given.items()}, {})
            assert said in str(caught.value), (settings, str(caught.value))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_clients_name_what_was_given_to_them(kind: type[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^ca: can't read nowhere.pem: No such file or directory$"):
        kind("localhost:1", tls=Tls(ca="nowhere.pem"))
    monkeypatch.setenv("PACELINE_TLS_CA", "nowhere.pem")
    with pytest.raises(ConfigError, match=r"^PACELINE_TLS_CA: can't read nowhere.pem"):
        kind("localhost:1")


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(served: Issued, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    command = ("openssl", "pkcs8", "-topk8", "-in", served.key, "-out", locked, "-passout", "pass:x")
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(ConfigError, match=r"locked.key is protected by a passphrase; it must have none"):
        Tls(served.cert, locked).server_context()


@pytest.mark.parametrize("files", ["plain", "tls"])
async def test_proxies_of_the_environment_are_ignored(
    files: str, served: Issued, mine: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROXIES:
        # Nobody listens there.
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy", "NO_GRPC_PROXY"):
        monkeypatch.delenv(name, raising=False)
    at_server, at_client = (served.tls, mine.tls) if files == "tls" else (NO_TLS, NO_TLS)
    async with serving(at_server) as address:
        async with open_channel(address, at_client) as channel:
            await check(channel)
        assert await asyncio.to_thread(is_serving, address, tls=at_client)
