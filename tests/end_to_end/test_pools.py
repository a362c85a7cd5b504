"""Three targets and two drafts behind one coordinator: nothing that happens to one of them changes a token."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2
import pytest

from paceline.client import AsyncClient
from paceline.errors import Unavailable
from paceline.sampling_params import SamplingParams
from paceline.serving.servicer import NEWS_S
from paceline.speculation_params import SpeculationParams
from tests.conftest import SMALL_FLAGS, UNLIKE_DRAFT, UNLIKE_TARGET
from tests.services import Service, free_port, restart, running, spawn_service, wait_until_free

pytestmark = pytest.mark.slow

NUM_STREAMS, NUM_TOKENS = 8, 200
WAIT_S = 120.0


class Servers:
    """`targets` and `drafts` by name; the lists of those in use are files."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.by_name: dict[str, Service] = {}

    def start(self, module: str, name: str, *flags: str, address: str = "") -> Service:
        address = address or f"unix:{self._folder}/{name}.sock"
        lock = () if module == "coordinator" else ("--compute-lock-file", f"{self._folder}/compute.lock")
        service = spawn_service(module, self._folder, *lock, *flags, address=address)
        self._stack.enter_context(running(service))
        self.by_name[name] = service
        return service

    def list(self, path: str, *names: str) -> None:
        lines = "".join(f"{self.by_name[name].address}\n" for name in names)
        whole = self._folder / f"{path}.new"
        whole.write_text(lines)
        whole.replace(self._folder / path)


class Pools:
    def __init__(self, servers: Servers, client: AsyncClient, metrics: str) -> None:
        self.servers, self.client, self._metrics = servers, client, metrics

    async def figures(self) -> dict[str, float]:
        """By metric and labels, as they are written."""
        async with httpx2.AsyncClient(timeout=WAIT_S) as http:
            text = (await http.get(self._metrics)).text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    async def until(self, server: str, name: str, value: float, metric: str = "paceline_server_up") -> None:
        address = self.servers.by_name[name].address
        async with asyncio.timeout(WAIT_S):
            while (await self.figures()).get(f'{metric}{{address="{address}",server="{server}"}}') != value:
                await asyncio.sleep(0.05)

    async def placed(self, server: str) -> dict[str, float]:
        """Returns the generations at each server, by its name."""
        figures = await self.figures()
        at = {name: f'{{address="{each.address}",server="{server}"}}' for name, each in self.servers.by_name.items()}
        found = {name: figures.get(f"paceline_server_generations{labels}") for name, labels in at.items()}
        return {name: value for name, value in found.items() if value}

    async def busiest(self, server: str) -> str:
        """Waits for generations, and returns the name of the server that has most."""
        async with asyncio.timeout(WAIT_S):
            while not (at := await self.placed(server)):
                await asyncio.sleep(0.01)
        return max(at, key=at.__getitem__)

    async def answers(self, num_tokens: int = NUM_TOKENS) -> list[list[int]]:
        async def answer(number: int) -> list[int]:
            sampling = SamplingParams(
                max_tokens=num_tokens, ignore_eos=True, temperature=0.8 * (number % 2), seed=number
            )
            return (await self.client.complete([3, 14, 15, number], sampling)).token_ids

        return await asyncio.gather(*(answer(number) for number in range(NUM_STREAMS)))


@contextlib.asynccontextmanager
async def pools(
    folder: Path, targets: Sequence[str], drafts: Sequence[str], target_flags: Sequence[str] = UNLIKE_TARGET
) -> AsyncIterator[Pools]:
    with contextlib.ExitStack() as stack:
        servers = Servers(folder, stack)
        for name in targets:
            servers.start("target_server", name, *target_flags)
        for name in drafts:
            servers.start("draft_server", name, *UNLIKE_DRAFT)
        for each in servers.by_name.values():
            await asyncio.to_thread(each.wait_serving)
        servers.list("targets", *targets)
        servers.list("drafts", *drafts)
        metrics = f"127.0.0.1:{free_port()}"
        draft = f"file:{folder}/drafts" if drafts else "none"
        flags = ("--target", f"file:{folder}/targets", "--draft", draft, "--metrics", metrics)
        coordinator = servers.start("coordinator", "coordinator", *flags)
        await asyncio.to_thread(coordinator.wait_serving)
        async with AsyncClient(coordinator.address) as client:
            found = Pools(servers, client, f"http://{metrics}/metrics")
            for name in targets:
                await found.until("target", name, 1)
            for name in drafts:
                await found.until("draft", name, 1)
            yield found


async def test_a_killed_target_and_a_killed_draft_change_no_token(tmp_path: Path) -> None:
    async with pools(tmp_path, ["target a", "target b", "target c"], ["draft a", "draft b"]) as found:
        expected = await found.answers()
        answering = asyncio.create_task(found.answers())
        for kind in ("target", "draft"):
            found.servers.by_name[await found.busiest(kind)].kill()
        assert await answering == expected
        figures = await found.figures()
        assert figures['paceline_migrations_total{server="target"}'] > 0
        # And all of them at the two targets that are left.
        assert await found.answers() == expected
        for name, each in found.servers.by_name.items():
            if each.process.poll() is None and name != "coordinator":
                await wait_until_free(each)


async def test_members_that_leave_the_list_or_are_stopped_change_no_token(tmp_path: Path) -> None:
    async with pools(tmp_path, ["target a", "target b"], ["draft a"]) as found:
        expected = await found.answers()
        answering = asyncio.create_task(found.answers(2 * NUM_TOKENS))
        leaving = await found.busiest("target")
        staying = "target b" if leaving == "target a" else "target a"
        # An empty list can't be meant.
        found.servers.list("targets")
        found.servers.list("drafts", "draft a")
        await asyncio.sleep(1.0)
        found.servers.list("targets", staying)
        service = found.servers.by_name[leaving]
        assert await asyncio.to_thread(service.stop) == 0
        assert [each[:NUM_TOKENS] for each in await answering] == expected
        # The same address, another process.
        found.servers.by_name[leaving] = await asyncio.to_thread(restart, service)
        with running(found.servers.by_name[leaving]):
            found.servers.list("targets", leaving, staying)
            await found.until("target", leaving, 1)
            found.servers.list("targets", leaving)
            assert await found.answers() == expected
            async with asyncio.timeout(WAIT_S):
                while (await found.placed("target")).keys() - {leaving}:
                    await asyncio.sleep(0.05)


async def test_a_target_that_is_told_to_end_ends_with_its_generations_and_none_moves(tmp_path: Path) -> None:
    async with pools(tmp_path, ["target a", "target b"], ["draft a"]) as found:
        expected = await found.answers()
        answering = asyncio.create_task(found.answers())
        ending = found.servers.by_name[await found.busiest("target")]
        assert await asyncio.to_thread(ending.stop) == 0
        assert await answering == expected
        assert (await found.figures())['paceline_migrations_total{server="target"}'] == 0
        assert await found.answers() == expected


async def test_a_coordinator_queues_what_another_one_left_no_room_for(tmp_path: Path) -> None:
    # Room for four contexts of the model's maximum length.
    async with pools(tmp_path, ["target a"], [], (*UNLIKE_TARGET, "--kv-cache-memory", "1MiB")) as found:
        metrics = f"127.0.0.1:{free_port()}"
        flags = ("--target", f"file:{tmp_path}/targets", "--draft", "none", "--metrics", metrics)
        second = found.servers.start("coordinator", "second", *flags)
        await asyncio.to_thread(second.wait_serving)
        async with AsyncClient(second.address) as client:
            other = Pools(found.servers, client, f"http://{metrics}/metrics")
            sampling = SamplingParams(max_tokens=511, ignore_eos=True, temperature=0)
            # Without drafts they go on for longer than the others take to come.
            off = SpeculationParams(enabled=False)
            here = [asyncio.create_task(found.client.complete([1], sampling, off)) for _ in range(3)]
            await found.until("target", "target a", 3, "paceline_server_generations")
            # The server tells the second coordinator of them after a tenth of a second at most.
            await asyncio.sleep(2 * NEWS_S)
            # Two may run in its half of the cache; alone, four could.
            there = [asyncio.create_task(client.complete([1], sampling)) for _ in range(3)]
            for num_waiting in (1, 0):
                async with asyncio.timeout(WAIT_S):
                    while (await other.figures())["paceline_generations_waiting"] != num_waiting:
                        await asyncio.sleep(0.01)
                assert not any(each.done() for each in there)
                for each in here:
                    each.cancel()
            assert len({tuple(each.token_ids) for each in await asyncio.gather(*there)}) == 1


async def test_a_target_with_other_weights_never_serves_the_pool(tmp_path: Path) -> None:
    async with pools(tmp_path, ["target a"], []) as found:
        expected = await found.answers()
        other = found.servers.start("target_server", "other", "--model", "dummy:tiny-32-b", *SMALL_FLAGS)
        await asyncio.to_thread(other.wait_serving)
        found.servers.list("targets", "target a", "other")
        await found.until("target", "other", 0)
        assert await found.answers() == expected
        assert not await found.placed("target")
        found.servers.by_name["target a"].kill()
        answering = asyncio.create_task(found.client.complete([1], SamplingParams(max_tokens=3, seed=1)))
        await asyncio.sleep(2.0)
        assert not answering.done()
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError, Unavailable):
            await answering


async def test_a_coordinator_starts_without_a_draft_where_they_come_and_go(tmp_path: Path) -> None:
    async with pools(tmp_path, ["target a"], ["draft a"]) as found:
        expected = await found.answers()
        found.servers.by_name["draft a"].kill()
        (tmp_path / "drafts").unlink()
        coordinator = found.servers.by_name["coordinator"]
        coordinator.kill()
        found.servers.by_name["coordinator"] = await asyncio.to_thread(restart, coordinator)
        with running(found.servers.by_name["coordinator"]):
            assert await found.answers() == expected
            draft = await asyncio.to_thread(restart, found.servers.by_name["draft a"])
            with running(draft):
                found.servers.list("drafts", "draft a")
                await found.until("draft", "draft a", 1)
                assert await found.answers() == expected


async def test_a_rolling_restart_of_all_servers_fails_no_request_and_changes_no_token(tmp_path: Path) -> None:
    async with pools(tmp_path, ["target a", "target b"], ["draft a", "draft b"]) as found:
        expected, is_over, num_answers = await found.answers(), False, 0

        async def ask() -> None:
            nonlocal num_answers
            while not is_over:
                assert await found.answers() == expected
                num_answers += NUM_STREAMS

        asking = asyncio.create_task(ask())
        with contextlib.ExitStack() as stack:
            for name, service in list(found.servers.by_name.items()):
                if name == "coordinator":
                    continue
                assert await asyncio.to_thread(service.stop) == 0
                found.servers.by_name[name] = await asyncio.to_thread(restart, service)
                stack.enter_context(running(found.servers.by_name[name]))
                await found.until(name.split()[0], name, 1)
                assert not asking.done()
            is_over = True
            await asking
        assert num_answers > 0
