"""A replica's tasks outlast errors. Ray is a stand-in."""

import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.ray.directory import NOTHING_SEEN

WAIT_S = 20.0
AWAY = ConnectionError("the head is away")


class FakeDirectory:
    """Answers with each of `answers` in turn, or raises it. Then it has no more lists, and every lease is renewed."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.seen: list[int] = []
        self.renewed: list[str] = []
        self.lists = SimpleNamespace(remote=self._next)
        self.renew = SimpleNamespace(remote=self._renew)

    async def _next(self, seen: int) -> Any:
        self.seen.append(seen)
        if not self._answers:
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _renew(self, role: str, instance: str, *_: Any) -> None:
        if self._answers:
            raise self._answers.pop(0)
        self.renewed.append(instance)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=SimpleNamespace(RayError=KeyError)))
    monkeypatch.delitem(sys.modules, "paceline.ray.replica", raising=False)
    module: Any = importlib.import_module("paceline.ray.replica")
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(module, "RENEWAL_S", 0.01)
    yield module
    # It knows the stand-in.
    del sys.modules["paceline.ray.replica"]


@asynccontextmanager
async def replica_of(module: Any, folder: Path, *found: Any) -> AsyncIterator[Any]:
    """A replica without processes. `found`: directories, and errors while they are looked for."""

    class Bare(module.Replica):  # type: ignore[misc]
        def __init__(self) -> None:
            self._folder, self._group, self._processes, self._tasks = folder, "", [], []
            self._directory = remaining.pop(0)

        def __del__(self) -> None:
            pass

    def directory_of(group: str) -> Any:
        directory = remaining.pop(0)
        if isinstance(directory, Exception):
            raise directory
        return directory

    remaining = list(found)
    module.directory_of = directory_of
    replica = Bare()
    yield replica
    for task in replica._tasks:
        task.cancel()
    await asyncio.gather(*replica._tasks, return_exceptions=True)


async def test_lists_are_followed_again_after_any_error_and_one_that_was_not_written_is_asked_for_again(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, replace = [OSError("no space left")], os.replace

    def replace_once_there_is_space(*paths: Any) -> None:
        if full:
            raise full.pop()
        replace(*paths)

    monkeypatch.setattr(os, "replace", replace_once_there_is_space)
    lists = (1, {"target": ["one:1"]})
    first, last, listed = FakeDirectory(AWAY, lists), FakeDirectory(lists), asyncio.Event()
    async with replica_of(module, tmp_path, first, AWAY, last) as replica, asyncio.timeout(WAIT_S):
        replica._tasks.append(asyncio.create_task(replica._follow(["target"], listed)))
        await listed.wait()
        assert (tmp_path / "target").read_text() == "one:1\n"
        while len(last.seen) < 2:
            await asyncio.sleep(0.01)
        assert (first.seen, last.seen) == ([NOTHING_SEEN] * 2, [NOTHING_SEEN, 1])
        await replica.check_health()


async def test_leases_are_renewed_again_after_any_error(module: Any, tmp_path: Path) -> None:
    first, last = FakeDirectory(AWAY, OSError("another")), FakeDirectory()
    async with replica_of(module, tmp_path, first, AWAY, last) as replica:
        replica._processes.append(
            SimpleNamespace(role="target", instance="a", address="one:1", is_serving=lambda: True)
        )
        replica._tasks.append(asyncio.create_task(replica._renew()))
        async with asyncio.timeout(WAIT_S):
            while not last.renewed:
                await asyncio.sleep(0.01)
        await replica.check_health()


async def test_a_task_that_has_ended_makes_the_replica_unhealthy(module: Any, tmp_path: Path) -> None:
    async with replica_of(module, tmp_path, FakeDirectory()) as replica:
        task = asyncio.create_task(asyncio.sleep(0), name="renewing the leases")
        replica._tasks.append(task)
        await replica.check_health()
        await task
        with pytest.raises(RuntimeError, match="renewing the leases has ended"):
            await replica.check_health()
