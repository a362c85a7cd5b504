"""Which calls need a key, and what is said to those that have none."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paceline.client import AsyncClient, Client
from paceline.errors import InvalidArgument, PacelineError, Unauthenticated
from paceline.keys import KeyRing, make_key
from paceline.rpc.channel import open_channel
from paceline.rpc.health import is_serving
from paceline.rpc.metadata import KeyCheck, key_of
from paceline.rpc.server import Server
from paceline.sampling_params import SamplingParams
from paceline.v1 import generation_pb2
from tests.hosted import Host
from tests.services import Trio

SHORT = SamplingParams(max_tokens=3)
GENERATION = generation_pb2.DESCRIPTOR.services_by_name["Generation"]
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
GUARDED = [f"/{service.full_name}/{method.name}" for service in (GENERATION, REFLECTION) for method in service.methods]
TIMEOUT_S = 30.0


class Guarded(NamedTuple):
    """A coordinator that asks for keys."""

    address: str
    file: Path
    # alice's
    key: str


@pytest.fixture(scope="module")
def guarded(host: Host, tiny_trio: Trio, tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    file = tmp_path_factory.mktemp("keys") / "keys"
    key = make_key(file, "alice")
    addresses = ("--draft", tiny_trio.draft.address, "--target", tiny_trio.target.address)
    return Guarded(host.start("coordinator", *addresses, "--api-keys", str(file), "--reflection").address, file, key)


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)


async def test_who_has_a_key_is_served(guarded: Guarded) -> None:
    async with AsyncClient(guarded.address, guarded.key) as client:
        assert (await client.describe()).max_num_seqs > 0
        assert len((await client.complete([3, 1, 4], SHORT)).token_ids) == 3


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, r"^the call has no API key; send one as `authorization: Bearer KEY`$"),
        ("wrong", "^the API key is not one that this server knows$"),
    ],
)
async def test_who_has_none_or_a_wrong_one_is_refused(guarded: Guarded, key: str | None, said: str) -> None:
    async with AsyncClient(guarded.address, key) as client:
        with pytest.raises(Unauthenticated, match=said):
            await client.describe()
        with pytest.raises(Unauthenticated, match=said):
            await client.complete([3, 1, 4], SHORT)


async def code_of_call(address: str, path: str, metadata: tuple[tuple[str, str], ...] = ()) -> grpc.StatusCode:
    """The status of a call whose client sends no message."""

    async def silence() -> AsyncIterator[bytes]:
        await asyncio.sleep(TIMEOUT_S)
        yield b""

    async with open_channel(address) as channel:
        call = channel.stream_stream(path)(silence(), metadata=metadata)
        code = await asyncio.wait_for(call.code(), TIMEOUT_S / 2)
        call.cancel()
        return code


@pytest.mark.parametrize("path", [*GUARDED, "/nobody/Knows", "/grpc.health.v1.HealthX/Check"])
async def test_every_method_refuses_before_it_waits_for_a_message(guarded: Guarded, path: str) -> None:
    assert await code_of_call(guarded.address, path) is grpc.StatusCode.UNAUTHENTICATED


async def test_health_checks_need_no_key(guarded: Guarded) -> None:
    assert await asyncio.to_thread(is_serving, guarded.address)
    request = health_pb2.HealthCheckRequest()
    async with open_channel(guarded.address) as channel:
        watch = channel.unary_stream(
            f"/{HEALTH.full_name}/Watch", health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )(request)  # fmt: skip
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_answers_who_has_a_key(guarded: Guarded) -> None:
    async with open_channel(guarded.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]), metadata=(("authorization", f"bearer {guarded.key}"),))
        names = [each.name for each in (await call.read()).list_services_response.service]
    assert GENERATION.full_name in names


HEADERS: dict[str, Callable[[str], list[str]]] = {
    "another scheme": lambda key: [f"Basic {key}"],
    "no scheme": lambda key: [key],
    "a scheme alone": lambda key: ["Bearer"],
    "an empty key": lambda key: ["Bearer  "],
    "two keys, one of them right": lambda key: [f"Bearer {key}", "Bearer wrong"],
    "more than the key": lambda key: [f"Bearer {key} {key}"],
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
async def test_a_header_of_another_form_is_no_key(guarded: Guarded, header: Callable[[str], list[str]]) -> None:
    metadata = tuple(("authorization", value) for value in header(guarded.key))
    assert await code_of_call(guarded.address, GUARDED[0], metadata) is grpc.StatusCode.UNAUTHENTICATED


def test_a_binary_header_is_no_key() -> None:
    assert key_of([("authorization", b"Bearer x")]) is None


async def test_keys_come_and_go_while_the_coordinator_runs(guarded: Guarded) -> None:
    async def is_served(key: str) -> bool:
        try:
            await client.with_key(key).describe()
        except Unauthenticated:
            return False
        return True

    async def wait_until(key: str, wanted: bool) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while await is_served(key) is not wanted:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.1)

    async with AsyncClient(guarded.address) as client:
        bob = make_key(guarded.file, "bob")
        await wait_until(bob, True)
        lines = guarded.file.read_text().splitlines(keepends=True)
        guarded.file.write_text("".join(line for line in lines if not line.startswith("bob ")))
        await wait_until(bob, False)
        assert await is_served(guarded.key), "alice's is still there"


async def test_a_client_with_another_key_shares_the_connection_and_does_not_end_it(guarded: Guarded) -> None:
    async with AsyncClient(guarded.address, guarded.key) as client:
        async with client.with_key("wrong") as other:
            with pytest.raises(Unauthenticated):
                await other.describe()
        async with client.with_key("wrong").with_key(guarded.key) as other:
            await other.describe()
        await client.describe()
        assert other._connection is client._connection
        with pytest.raises(InvalidArgument, match=r"^key must be"):
            client.with_key("two words")


async def test_a_client_without_a_key_sends_none_whatever_the_environment_has(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes its callers' keys on must not lend them its own."""
    monkeypatch.setenv("PACELINE_API_KEY", guarded.key)
    async with AsyncClient(guarded.address) as client:
        await client.describe()
        with pytest.raises(Unauthenticated, match="has no API key"):
            await client.with_key(None).describe()


def test_the_client_for_threads_sends_keys_too(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(guarded.address) as client, pytest.raises(Unauthenticated):
        client.describe()
    with Client(guarded.address, guarded.key) as client:
        assert client.complete([3, 1, 4], SHORT).token_ids
    monkeypatch.setenv("PACELINE_API_KEY", guarded.key)
    with Client(guarded.address) as client:
        client.describe()


async def test_a_key_harms_nothing_where_none_is_asked_for(tiny_trio: Trio) -> None:
    async with AsyncClient(tiny_trio.address, "whatever") as client:
        assert len((await client.complete([3, 1, 4], SHORT)).token_ids) == 3


class FailingServicer:
    """No real servicer fails on demand."""

    async def Describe(self, message: Any, context: Any) -> None:
        raise RuntimeError("a bug")

    async def Generate(self, message: Any, context: Any) -> AsyncIterator[Any]:
        raise RuntimeError("a bug")
        yield

    Tokenize = Detokenize = TokenizerInfo = Describe


async def test_the_log_of_a_call_that_failed_names_the_keys_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {name: make_key(tmp_path / "keys", name) for name in ("alice", "bob")}
    server = Server(f"unix:{tmp_path}/it.sock", [KeyCheck(KeyRing(tmp_path / "keys"))])
    server.add_service(GENERATION, FailingServicer())
    async with AsyncClient(await server.start()) as client:
        for name, key in keys.items():
            for call in (client.with_key(key).describe, lambda key=key: client.with_key(key).complete("x")):
                caplog.clear()
                with caplog.at_level(logging.DEBUG), pytest.raises(PacelineError):
                    await call()
                assert f"a call failed (key of {name})" in caplog.text
                assert not [key for key in keys.values() if key in caplog.text]
    await server.stop(0)


@pytest.mark.parametrize("flags", [(), ("--share-between-keys",)], ids=["apart", "shared"])
async def test_requests_of_different_keys_share_no_cached_prompt(
    host: Host, tiny_trio: Trio, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    keys = [make_key(tmp_path / "keys", name) for name in ("alice", "bob")]
    addresses = ("--draft", tiny_trio.draft.address, "--target", tiny_trio.target.address)
    address = host.start("coordinator", *addresses, "--api-keys", str(tmp_path / "keys"), *flags).address
    prompt = [5 + len(flags), *range(1, 130)]
    found: dict[str, list[int]] = {"": [], "mine": []}
    for salt, cached in found.items():
        for key in (*keys, keys[0]):
            async with AsyncClient(address, key) as client:
                done = await client.complete(prompt, SHORT, cache_salt=salt)
            assert done.finish is not None
            cached.append(done.finish.cached_prompt_tokens)
    expected = [0, 128, 128] if flags else [0, 0, 128]
    assert found == {"": expected, "mine": expected}
