"""The lock between servers: exclusive while both behave, never a reason to stop."""

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline.engine.scheduling import compute_lock
from paceline.engine.scheduling.compute_lock import ComputeLock
from paceline.errors import ConfigError
from tests.disks import FULL, disk

HOLD = "import sys, time; from paceline.engine.scheduling.compute_lock import ComputeLock\nwith ComputeLock(sys.argv[1]).lease(): print(flush=True); time.sleep(600)"


def test_two_servers_never_compute_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    computing = 0
    seen: set[int] = set()

    def serve() -> None:
        nonlocal computing
        own = ComputeLock(path)
        for _ in range(300):
            with own.lease():
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


def test_a_lease_within_a_lease_ends_with_the_outer_one(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    own = ComputeLock(path)
    with open(path) as file:
        with own.lease() as outer:
            with own.lease() as inner:
                assert inner is outer
            assert is_held(file.fileno())
        assert not is_held(file.fileno())
        with own.lease():
            assert is_held(file.fileno())


def test_who_waits_is_next(tmp_path: Path) -> None:
    """However fast the one who just computed comes back."""
    path, order = str(tmp_path / "lock"), []
    own, other = ComputeLock(path), ComputeLock(path)

    def wait_and_compute() -> None:
        with other.lease():
            order.append("other")

    thread = threading.Thread(target=wait_and_compute)
    with own.lease(), open(f"{path}.next") as place:
        thread.start()
        while not is_held(place.fileno()):
            time.sleep(0.001)
    with own.lease():
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
    """Where a peer hangs; the others must not lose patience on a busy machine."""
    if "peer" in request.fixturenames:
        monkeypatch.setattr(compute_lock, "TIMEOUT_S", 0.2)


@pytest.fixture
def peer(tmp_path: Path):
    """A process that took the lock and keeps it."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_peer_that_hangs_is_not_waited_for_again(
    tmp_path: Path, peer: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, waits = ComputeLock(str(tmp_path / "lock")), []
    monkeypatch.setattr(compute_lock.time, "sleep", waits.append)
    with own.lease():
        assert waits
    waits.clear()
    with own.lease():
        assert not waits


def test_the_lease_of_a_process_that_dies_is_free(tmp_path: Path, peer: subprocess.Popen[bytes]) -> None:
    peer.kill()
    peer.wait()
    own, other = ComputeLock(str(tmp_path / "lock")), ComputeLock(str(tmp_path / "lock"))
    with own.lease():
        assert other._acquire() is False  # held, hence by `own`


def test_without_a_file_every_lease_is_free() -> None:
    with ComputeLock(None).lease(), ComputeLock(None).lease():
        pass


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"compute_lock_file .*nowhere/lock"):
        ComputeLock(str(tmp_path / "nowhere" / "lock"))


def test_a_lease_lasts_as_long_as_the_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(compute_lock.time, "perf_counter", lambda: now_s)
    path = str(tmp_path / "lock")
    own = ComputeLock(path)
    with own.lease() as lease:
        assert lease.is_over, "nobody was here before"
    with ComputeLock(path).lease():
        now_s += 1.4
    with own.lease() as lease:
        now_s += 1.3
        assert not lease.is_over
        now_s += 0.2
        assert lease.is_over
    with own.lease() as lease:
        assert lease.is_over, "the peer had no lease since"


def test_the_peer_learns_whom_it_may_expect_even_with_the_same_process_id(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    own = ComputeLock(path)
    with own.lease() as lease:
        assert lease.before is None
        lease.num_handed_over = 3
    with own.lease() as lease:
        assert lease.before is None, "it was our own"
        lease.num_handed_over = 5
    with ComputeLock(path).lease() as lease:
        assert lease.before is not None
        assert lease.before.num_handed_over == 5
        assert lease.before.started_s <= lease.before.ended_s <= time.perf_counter()


def test_a_full_disk_stops_nobody(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", FULL) as folder:
        own, other = ComputeLock(str(folder / "lock")), ComputeLock(str(folder / "lock"))
        for lock in (own, other, own):
            with lock.lease() as lease, open(folder / "lock") as file:
                assert is_held(file.fileno())
            assert lease.before is None


def test_two_models_on_one_thread_do_not_wait_for_each_other(tmp_path: Path) -> None:
    own, other = (ComputeLock(str(tmp_path / "lock")) for _ in range(2))
    own.share_files(other)
    with other.lease():
        assert own._acquire()
