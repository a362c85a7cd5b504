"""Keys in the processes that users start: none of them is ever written down, and none listens to all without."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.client import AsyncClient
from paceline.errors import InvalidArgument, PacelineError, Unauthenticated
from paceline.keys import make_key
from paceline.rpc.channel import open_channel
from paceline.sampling_params import SamplingParams
from tests.conftest import TINY
from tests.hosted import Host

SHORT = SamplingParams(max_tokens=4)
TIMEOUT_S = 30.0


async def test_no_key_is_in_any_log_or_error(host: Host, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    right, wrong, slipped = make_key(file, "alice"), "wrong-key-of-somebody", "a-key-that-slipped-into-the-file"
    raised: list[PacelineError] = []
    trio = host.start_trio(TINY, TINY, ("--api-keys", str(file)))
    async with AsyncClient(trio.address, right) as client:
        await client.complete("t1 t2", SHORT)
        for bad in (client.with_key(wrong).describe(), client.complete([512], SHORT)):
            with pytest.raises((Unauthenticated, InvalidArgument)) as caught:
                await bad
            raised.append(caught.value)
    async with open_channel(trio.address) as channel:
        # No protobuf at all, under each key.
        for key in (right, wrong):
            call = channel.unary_unary("/paceline.v1.Generation/Describe")
            with pytest.raises(Exception, match="StatusCode"):
                await call(b"\xff\xff", metadata=(("authorization", f"Bearer {key}"),))
    file.write_text(f"{file.read_text()}bob {slipped}\n")
    # All services of this process log there.
    log = trio.coordinator.log
    await wait_for_log(trio.address, right, log, f"{file}, line 2")
    for service in (trio.coordinator, trio.target, trio.draft):
        assert service.stop() == 0
    said = log.read_text() + "".join(capfd.readouterr())
    said += "".join(f"{error} {error!r} {error.__context__!r}" for error in raised)
    assert [key for key in (right, wrong, slipped) if key in said] == []
    assert "1 API keys" in said
    assert sum(f"{file}, line 2" in line and "keeping the previous keys" in line for line in said.splitlines()) == 1


async def wait_for_log(address: str, key: str, log: Path, text: str) -> None:
    """Calls on until the log says it: the file is looked at when calls come."""
    deadline_s = time.monotonic() + TIMEOUT_S
    async with AsyncClient(address, key) as client:
        while text not in await asyncio.to_thread(log.read_text):
            assert time.monotonic() < deadline_s
            await client.describe()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_a_coordinator_does_not_start_on_all_addresses_without_a_word(listen: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coordinator", "--listen", listen]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=TIMEOUT_S)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
    assert ran.stderr.startswith(f"error: --listen {listen} is open to other machines; add --api-keys FILE (")
    assert "--no-keys" in ran.stderr
