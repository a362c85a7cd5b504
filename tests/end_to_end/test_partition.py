"""Of two targets, the one on another host can't be reached for half a minute: answers go on at the other."""

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.slow_network import SlowNetwork
from paceline.client import AsyncClient
from paceline.errors import Unavailable
from paceline.sampling_params import SamplingParams
from tests.conftest import UNLIKE_TARGET
from tests.telling import Tell

pytestmark = pytest.mark.slow

NUM_STREAMS, NUM_TOKENS = 6, 400
PARTED_S = 30.0
WAIT_S = 60.0


@pytest.fixture
def network() -> SlowNetwork:
    try:
        return SlowNetwork()
    except OSError as error:
        pytest.skip(str(error))


class Streams:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.longest_gap_s = 0.0
        self.num_tokens = 0

    async def all(self) -> list[list[int]]:
        return await asyncio.gather(*(self._one(number) for number in range(NUM_STREAMS)))

    async def _one(self, number: int) -> list[int]:
        sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8 * (number % 2), seed=number)
        tokens: list[int] = []
        last_s = time.monotonic()
        async for chunk in self._client.stream([5, number], sampling):
            now_s = time.monotonic()
            self.longest_gap_s, last_s = max(self.longest_gap_s, now_s - last_s), now_s
            tokens += chunk.token_ids
            self.num_tokens += len(chunk.token_ids)
        return tokens


async def test_answers_go_on_while_a_target_is_cut_off(network: SlowNetwork, tmp_path: Path, tell: Tell) -> None:
    with network.up(), contextlib.ExitStack() as stack:

        def start(side: str, module: str, *flags: str) -> None:
            command = [*network.command(side), sys.executable, "-m", module, *flags]
            process = subprocess.Popen(command, stderr=(tmp_path / f"{module}-{side}.log").open("wb"))
            stack.callback(process.wait)
            stack.callback(process.kill)

        near, far = f"unix:{tmp_path}/near.sock", f"{network.addresses['far']}:50052"
        start("near", "target_server", *UNLIKE_TARGET, "--listen", near)
        start("far", "target_server", *UNLIKE_TARGET, "--listen", far)
        address = f"unix:{tmp_path}/coordinator.sock"
        start("near", "coordinator", "--listen", address, "--target", f"{near},{far}", "--draft", "none")
        log = tmp_path / "coordinator-near.log"
        async with AsyncClient(address) as client:
            async with asyncio.timeout(WAIT_S):
                while log.read_text().count(" is up: ") < 2:
                    await asyncio.sleep(0.1)
                while True:
                    with contextlib.suppress(Unavailable):
                        await client.describe()
                        break
                    await asyncio.sleep(0.1)
            expected = await Streams(client).all()
            parted, found = Streams(client), []
            answering = asyncio.create_task(parted.all())
            while parted.num_tokens < NUM_STREAMS * NUM_TOKENS / 4:
                await asyncio.sleep(0.001)
            network.loss = 1.0
            parted_s = time.monotonic()
            found.append(await answering)
            while time.monotonic() - parted_s < PARTED_S:
                found.append(await parted.all())
            network.loss = 0.0
            async with asyncio.timeout(WAIT_S):
                while log.read_text().count(f"target server at {far} is up: ") < 2:
                    await asyncio.sleep(0.1)
            found.append(await Streams(client).all())
    assert found == [expected] * len(found)
    assert "lost the target server" in log.read_text()
    tell(f"cut off from one of two targets: longest gap {parted.longest_gap_s:.1f} s")
