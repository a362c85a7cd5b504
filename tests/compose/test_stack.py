"""docker compose for real: built, started, used through the published ports, broken, and taken down.

One stack for all tests, in the order of the file. Times are told, not judged.
"""

import asyncio
import contextlib
import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.client import AsyncClient, Completion, Tls
from paceline.errors import PacelineError, Unavailable, Unreachable
from paceline.rpc.channel import NO_TLS
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.certificates import made_as_documented
from tests.compose.engine import NoEngine, engine
from tests.compose.stack import Stack, built_stack
from tests.telling import Tell, timed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROMPT = "Write a story about a lighthouse keeper and the sea."
GREEDY = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
PLAIN = SpeculationParams(enabled=False)
# In a container that has the lock file: whose leases were seen while a generation runs.
HOLDERS = (
    "import struct, time\n"
    "seen = set()\n"
    "for _ in range(400):\n"
    "    data = open('/home/paceline/.cache/paceline/compute.lock', 'rb').read(8)\n"
    "    seen |= {struct.unpack('=Q', data)[0]} if len(data) == 8 else set()\n"
    "    time.sleep(0.005)\n"
    "print(len(seen))\n"
)


# As docs/server.md says: coordinator and gateway want certificates too.
ASK_CLIENTS = dict.fromkeys(
    ("PACELINE_COORDINATOR_TLS_CLIENT_CA", "PACELINE_GATEWAY_TLS_CLIENT_CA"), "/etc/paceline/tls/ca.pem"
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with contextlib.ExitStack() as parts:
        try:
            made = parts.enter_context(engine(tmp_path_factory.mktemp("engine")))
            yield parts.enter_context(built_stack(made, tmp_path_factory.mktemp("tree")))
        except NoEngine as reason:
            pytest.skip(str(reason))


def answer_over_http(address: str, max_tokens: int, tls: Tls = NO_TLS) -> str:
    connection = http.client.HTTPConnection(address, timeout=120)
    if tls:
        connection = http.client.HTTPSConnection(address, timeout=120, context=tls.client_context())
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert response.status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


async def complete(
    stack: Stack, sampling: SamplingParams, speculation: SpeculationParams | None = None, tls: Tls = NO_TLS
) -> Completion:
    async with AsyncClient(stack.grpc_address, tls=tls) as client:
        return await client.complete(PROMPT, sampling, speculation)


def give_certificates(folder: Path, made: Path) -> None:
    """What the services need, readable for the containers' user, whoever runs the tests."""
    folder.mkdir()
    for name in ("ca.pem", "services.pem", "services.key"):
        shutil.copy(made / name, folder)
    (folder / "services.key").chmod(0o644)


async def follow(client: AsyncClient, completion: Completion) -> None:
    async for chunk in client.stream(PROMPT, GREEDY):
        completion.add(chunk)


async def until_under_way(completion: Completion) -> None:
    while len(completion.token_ids) < 20:
        await asyncio.sleep(0.01)
    assert completion.finish is None, "too late to disturb anything"


def test_the_image_has_what_runs_and_nothing_else(stack: Stack, tell: Tell) -> None:
    image = stack.variables["PACELINE_IMAGE"]
    [found] = json.loads(stack.engine.docker("image", "inspect", image))
    tell(f"image: {found['Size'] / 2**20:.0f} MiB")
    assert not any("TOKEN" in variable or "PASSWORD" in variable for variable in found["Config"]["Env"])
    look = (
        "id -u; command -v gcc cc pip; ls -d /src /wheelhouse /root/.cache /opt/paceline/lib/python3*/site-packages/tests"
        " 2>/dev/null; ls /opt/paceline/lib/python3*/site-packages/paceline/client.py"
    )
    words = stack.engine.docker("run", "--rm", "--network", "none", image, "sh", "-c", look).split()
    assert words[0] == "1000"
    # The virtual environment's own pip is there; no other's, no compiler, no sources of the build.
    assert [word for word in words[1:] if "paceline/" not in word] == []


async def test_it_comes_up_and_answers_through_both_ports(stack: Stack, tell: Tell) -> None:
    with timed("up --wait, nothing compiled yet", tell):
        await asyncio.to_thread(stack.up)
    with timed("16 tokens over gRPC", tell):
        over_grpc = await complete(stack, SHORT)
    with timed("16 tokens over HTTP", tell):
        over_http = await asyncio.to_thread(answer_over_http, stack.http_address, 16)
    assert over_http == over_grpc.text
    assert (await complete(stack, SHORT, PLAIN)).token_ids == over_grpc.token_ids


def test_containers_run_as_the_file_says(stack: Stack) -> None:
    for service in ("draft", "target", "coordinator", "gateway"):
        found = stack.inspect(service)
        assert found["HostConfig"]["ReadonlyRootfs"], service
        assert found["HostConfig"]["CapDrop"] == ["ALL"], service
        assert found["Config"]["User"] == "paceline", service
        published = {port for port, hosts in found["NetworkSettings"]["Ports"].items() if hosts}
        assert bool(published) == (service in ("coordinator", "gateway")), service


async def test_model_servers_take_turns_across_containers(stack: Stack) -> None:
    running = asyncio.create_task(complete(stack, GREEDY, SpeculationParams(num_speculative_tokens=4)))
    seen = await asyncio.to_thread(stack.compose, "exec", "--no-TTY", "draft", "python", "-c", HOLDERS)
    await running
    assert int(seen) == 2


@pytest.mark.parametrize("service", ["draft", "target"])
async def test_a_killed_model_server_changes_no_token(service: str, stack: Stack, tell: Tell) -> None:
    expected = (await complete(stack, GREEDY, PLAIN)).token_ids
    restarts = stack.inspect(service)["RestartCount"]
    disturbed = Completion()
    async with AsyncClient(stack.grpc_address) as client:
        following = asyncio.create_task(follow(client, disturbed))
        await until_under_way(disturbed)
        with timed(f"kill -9 of {service}, to the end of 400 tokens", tell):
            await asyncio.to_thread(stack.kill, service)
            await following
    assert disturbed.token_ids == expected
    assert disturbed.finish is not None
    assert stack.inspect(service)["RestartCount"] == restarts + 1
    await asyncio.to_thread(stack.wait_healthy, service)


@pytest.mark.parametrize("service", ["gateway", "coordinator"])
async def test_a_killed_service_ends_its_clients_calls_and_serves_again(service: str, stack: Stack, tell: Tell) -> None:
    expected, whole = await complete(stack, SHORT), await complete(stack, GREEDY)
    disturbed = Completion()
    async with AsyncClient(stack.grpc_address) as client:
        following = asyncio.create_task(follow(client, disturbed))
        over_http = asyncio.create_task(asyncio.to_thread(answer_over_http, stack.http_address, 400))
        await until_under_way(disturbed)
        with timed(f"kill -9 of {service}, until healthy", tell):
            await asyncio.to_thread(stack.kill, service)
            [end, answer] = await asyncio.gather(following, over_http, return_exceptions=True)
            await asyncio.to_thread(stack.wait_healthy, "coordinator", "gateway")
    # The gateway is not on the way of a gRPC client.
    assert (end is None) if service == "gateway" else isinstance(end, Unavailable)
    # And for its own it finds the coordinator again.
    assert isinstance(answer, OSError | http.client.HTTPException) if service == "gateway" else answer == whole.text
    assert (await complete(stack, SHORT)).token_ids == expected.token_ids
    assert await asyncio.to_thread(answer_over_http, stack.http_address, 16) == expected.text


async def test_stopped_under_load_it_ends_what_runs(stack: Stack, tell: Tell) -> None:
    expected = (await complete(stack, GREEDY)).token_ids
    completion = Completion()
    async with AsyncClient(stack.grpc_address) as client:
        following = asyncio.create_task(follow(client, completion))
        await until_under_way(completion)
        with timed("stop of the coordinator with a generation under way", tell):
            await asyncio.to_thread(stack.compose, "stop", "coordinator")
        await following
    assert completion.token_ids == expected
    assert stack.inspect("coordinator")["State"]["ExitCode"] == 0
    with pytest.raises(PacelineError):
        await complete(stack, SHORT)
    await asyncio.to_thread(stack.up)
    assert (await complete(stack, GREEDY)).token_ids == expected


def test_an_idle_stack_stops_in_order(stack: Stack, tell: Tell) -> None:
    with timed("stop of all, idle", tell):
        stack.compose("stop")
    codes = {each: stack.inspect(each)["State"]["ExitCode"] for each in ("draft", "target", "coordinator", "gateway")}
    assert set(codes.values()) == {0}, codes


async def test_with_certificates_it_answers_those_who_have_one(stack: Stack, tmp_path: Path, tell: Tell) -> None:
    """Over every way in: the published ports, and the model servers' on the network between containers."""
    me = made_as_documented(tmp_path)["me"].tls
    encrypted = stack.with_file("deploy/compose/tls.yml", **ASK_CLIENTS)
    give_certificates(stack.folder / "tls", tmp_path)
    with timed("up --wait with certificates", tell):
        await asyncio.to_thread(encrypted.up)
    over_grpc = await complete(encrypted, SHORT, tls=me)
    assert await asyncio.to_thread(answer_over_http, encrypted.http_address, 16, me) == over_grpc.text
    for stranger in (NO_TLS, Tls(ca=me.ca)):
        with pytest.raises(Unreachable):
            await complete(encrypted, SHORT, tls=stranger)
        with pytest.raises((OSError, http.client.HTTPException)):
            await asyncio.to_thread(answer_over_http, encrypted.http_address, 16, stranger)
    for server in ("draft:50051", "target:50052"):
        ask = ("gateway", "python", "-m", "paceline.rpc.health", server)
        encrypted.compose("exec", "--no-TTY", *ask)
        with pytest.raises(AssertionError):
            encrypted.compose("exec", "--no-TTY", "--env", "PACELINE_TLS_CERT=", "--env", "PACELINE_TLS_KEY=", *ask)
    with timed("down", tell):
        encrypted.compose("down")
    assert encrypted.compose("ps", "--all", "--quiet").split() == []
