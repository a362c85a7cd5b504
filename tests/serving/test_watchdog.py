"""A device thread that hangs: the stream lives on for a while, then the server ends, and SIGTERM ends it sooner.

The step that hangs is a fake: no real one hangs when told to.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.serving import watchdog
from tests.conftest import TINY
from tests.services import Service, running
from tests.serving.raw_session import RawSession, verify

pytestmark = pytest.mark.slow

SERVER = """
import time
from paceline.engine.scheduling import worker
from paceline.serving import main as serving
from target_server.__main__ import main

worker.run_step = lambda runner, shares: time.sleep(3600)
serving.DRAIN_S = 1.0
main()
"""


@contextlib.contextmanager
def hanging(folder: Path, **variables: str) -> Iterator[tuple[Service, RawSession]]:
    """A server whose step hangs for ever."""
    address, log = f"unix:{folder}/target.sock", folder / "target.log"
    with log.open("ab") as output:
        command = [sys.executable, "-c", SERVER, "--listen", address, *TINY]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | variables)
    service = Service("target_server", address, process, log)
    with running(service):
        service.wait_serving()
        session = RawSession(service)
        session.send(session.open(), verify(0, [1, 2]))
        yield service, session


def test_a_server_whose_step_hangs_ends_and_says_why(tmp_path: Path) -> None:
    with hanging(tmp_path, PACELINE_TARGET_STEP_TIMEOUT="1") as (service, _):
        assert service.process.wait(timeout=30) == watchdog.STATUS
    assert "an engine step has taken longer than 1 s (step_timeout)" in service.log.read_text()


def test_a_long_step_is_no_silence_and_sigterm_ends_its_server(tmp_path: Path) -> None:
    with hanging(tmp_path) as (service, session):
        for _ in range(3):
            assert len(next(session.responses()).answers) == 0
        assert service.process.poll() is None
        assert service.stop() == watchdog.STATUS


@pytest.mark.parametrize(("value", "said"), [("0", "greater than 0"), ("nan", "step_timeout"), ("1e9", "86400")])
def test_a_bad_limit_is_named_with_its_range(value: str, said: str) -> None:
    environment = os.environ | {"PACELINE_TARGET_STEP_TIMEOUT": value}
    answer = subprocess.run(
        [sys.executable, "-m", "target_server"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"error: step_timeout is {value!r}: ")
    assert said in answer.stderr
