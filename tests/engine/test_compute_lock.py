"""Turns at computing: exclusive while neighbours behave, never a reason to stop."""

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline.engine.scheduling import compute_lock as turns
from paceline.engine.scheduling.compute_lock import Turns
from paceline.errors import ConfigError

HOLD = "import sys, time; from paceline.engine.scheduling.compute_lock import Turns\nwith Turns(sys.argv[1]).take(): print(flush=True); time.sleep(600)"


def test_two_servers_never_compute_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "turns")
    computing = 0
    seen: set[int] = set()

    def serve() -> None:
        nonlocal computing
        own = Turns(path)
        for _ in range(300):
            with own.take():
                computing += 1
                seen.add(computing)
                sum(range(2000))  # long enough for the other to look
                computing -= 1

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1}


def test_who_waits_is_next(tmp_path: Path) -> None:
    """However fast the one who just computed comes back."""
    path, order = str(tmp_path / "turns"), []
    own, other = Turns(path), Turns(path)

    def wait_and_compute() -> None:
        with other.take():
            order.append("other")

    thread = threading.Thread(target=wait_and_compute)
    with own.take(), open(f"{path}.next") as place:
        thread.start()
        while not is_held(place.fileno()):
            time.sleep(0.001)
    with own.take():
        order.append("own")
    thread.join()
    assert order == ["other", "own"]


def is_held(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


@pytest.fixture(autouse=True)
def _short_patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a neighbour hangs; the others must not lose patience on a busy machine."""
    if "neighbour" in request.fixturenames:
        monkeypatch.setattr(turns, "PATIENCE_S", 0.2)


@pytest.fixture
def neighbour(tmp_path: Path):
    """A process that took its turn and keeps it."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "turns")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_neighbour_that_hangs_is_not_waited_for_again(
    tmp_path: Path, neighbour: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, waits = Turns(str(tmp_path / "turns")), []
    monkeypatch.setattr(turns.time, "sleep", waits.append)
    with own.take():
        assert waits
    waits.clear()
    with own.take():
        assert not waits


def test_the_turn_of_a_process_that_dies_is_free(tmp_path: Path, neighbour: subprocess.Popen[bytes]) -> None:
    neighbour.kill()
    neighbour.wait()
    own, other = Turns(str(tmp_path / "turns")), Turns(str(tmp_path / "turns"))
    with own.take():
        assert other._acquire() is False  # held, hence by `own`


def test_without_a_file_every_turn_is_free() -> None:
    with Turns(None).take(), Turns(None).take():
        pass


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"turns_file .*nowhere/turns"):
        Turns(str(tmp_path / "nowhere" / "turns"))


def test_a_turn_lasts_as_long_as_the_neighbours_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now_s)
    path = str(tmp_path / "turns")
    own = Turns(path)
    with own.take() as turn:
        assert turn.is_over, "nobody was here before"
    monkeypatch.setattr(turns.os, "getpid", lambda: 4711)
    with Turns(path).take():
        now_s += 1.4
    monkeypatch.undo()
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now_s)
    with own.take() as turn:
        now_s += 1.3
        assert not turn.is_over
        now_s += 0.2
        assert turn.is_over
    with own.take() as turn:
        assert turn.is_over, "the neighbour had no turn since"


def test_the_neighbour_learns_whom_it_may_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "turns")
    own = Turns(path)
    with own.take() as turn:
        assert turn.before is None
        turn.num_handed_over = 3
    with own.take() as turn:
        assert turn.before is None, "it was our own"
        turn.num_handed_over = 5
    monkeypatch.setattr(turns.os, "getpid", lambda: 4711)
    with Turns(path).take() as turn:
        assert turn.before is not None
        assert turn.before.num_handed_over == 5
        assert turn.before.started_s <= turn.before.ended_s <= time.perf_counter()
