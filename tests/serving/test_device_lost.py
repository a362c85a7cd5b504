"""A model server whose GPU is lost ends and says why in one line. It does not go on saying that it serves."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from paceline.rpc.health import is_serving
from tests.conftest import TINY
from tests.services import Service, running
from tests.serving.raw_session import RawSession, verify

pytestmark = pytest.mark.slow

# A fake for a step on a GPU that has met a bad address: here is no GPU.
SERVER = """
from paceline.engine.scheduling import worker
from paceline.errors import DeviceLost
from target_server.__main__ import main

def step(runner, shares):
    raise DeviceLost("the GPU failed: CUDA error: an illegal memory access was encountered")

worker.run_step = step
main()
"""


def test_a_server_without_its_gpu_ends_with_one_line(tmp_path: Path) -> None:
    address, log = f"unix:{tmp_path}/target.sock", tmp_path / "target.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, "--listen", address, *TINY], stdout=output, stderr=output
        )
    service = Service("target_server", address, process, log)
    with running(service):
        service.wait_serving()
        session = RawSession(service)
        sequence = session.open()
        # No answer: a broken stream is what makes a coordinator replay the sequence on another server.
        with pytest.raises(grpc.RpcError) as broken:
            session.ask(sequence, verify(0, [1, 2]))
        assert broken.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert process.wait(timeout=30) == 1
    assert not is_serving(address, timeout_s=1.0)
    last_lines = log.read_text().splitlines()[-2:]
    assert last_lines[0].endswith("the device thread crashed; the server exits")
    assert last_lines[1] == "error: the GPU failed: CUDA error: an illegal memory access was encountered"
