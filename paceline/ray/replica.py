"""A replica of Ray Serve that supervises processes."""

import asyncio
import contextlib
import http.client
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from paceline.ray.directory import NOTHING_SEEN, RENEWAL_S, Directory, Lists
from paceline.ray.process import Plan, ServiceProcess, end_now
from paceline.ray.scaling import Demand
from paceline.rpc.address_source import INTERVAL_S

log = logging.getLogger("ray.serve")
# Pause before the directory is asked again, if it could not be.
RETRY_S = 1.0
# How long to say that a process is gone: its lease would say so, too.
GOODBYE_S = 2.0
READY_INTERVAL_S = 0.1


def directory_of(group: str) -> Any:
    """Returns the group's directory, an actor that every supervisor may start. Blocks."""
    options = {"name": f"directory-{group}", "namespace": "paceline", "get_if_exists": True, "lifetime": "detached"}
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=1000)(Directory)
    return actor.options(**options).remote()


class Replica:
    """Starts one process, or two that share a GPU, and starts those again that end.

    Other processes' addresses are written to files, so the processes know nothing of Ray.
    """

    async def __init__(self, group: str, host: str | None, plans: Sequence[Plan]) -> None:  # type: ignore[misc]
        # For lists and a lock.
        self._folder = Path(tempfile.mkdtemp(prefix="paceline-ray-"))
        # Those that serve.
        self._processes: list[ServiceProcess] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._shares_device = len(plans) > 1
        self._group, self._host = group, host or ray.util.get_node_ip_address()
        self._directory = await asyncio.to_thread(directory_of, group)
        if roles := sorted({role for plan in plans for role in plan.servers.values()}):
            listed = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._follow(roles, listed), name="following the lists"))
            await listed.wait()
        await asyncio.gather(*map(self._add, map(self._start, plans)))
        self._tasks.append(asyncio.create_task(self._renew(), name="renewing the leases"))

    async def check_health(self) -> None:
        """Raises RuntimeError if a process does not answer, or a task that never ends has ended."""
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"{task.get_name()} has ended")
        for process in self._processes:
            if not await asyncio.to_thread(process.is_serving):
                raise RuntimeError(f"the {process.role} at {process.address} does not answer")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns how many replicas the work of this one takes, and how many targets are asked for (see `scaling`)."""
        load = demand = 0.0
        for process in self._processes:
            if process.role == "target":
                demand = await asyncio.to_thread(process.meter.num_targets, await self._directory.demand.remote())
            else:
                load += await asyncio.to_thread(process.meter.load)
        return {"load": load, "demand": demand}

    async def __del__(self) -> None:
        """Ends in order: no new generations, then the old ones end or move, then the process does."""
        # One that does not serve is in no list and has nothing to drain: its process ends with this one.
        if self._processes:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait([asyncio.create_task(self._leave(each)) for each in self._processes], timeout=GOODBYE_S)
            # Until those who follow the lists have read them.
            await asyncio.sleep(2 * INTERVAL_S)
            await asyncio.gather(*(asyncio.to_thread(each.stop) for each in self._processes))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, plan: Plan) -> ServiceProcess:
        more: dict[str, Any] = {setting: f"file:{self._folder / role}" for setting, role in plan.servers.items()}
        if self._shares_device:
            more["compute_lock_file"] = self._folder / "compute.lock"
        return ServiceProcess(plan, self._host, more, self._on_end)

    async def _add(self, process: ServiceProcess) -> None:
        """Waits until the process serves. Raises RuntimeError if it ends."""
        while not await asyncio.to_thread(process.is_serving):
            if process.has_ended:
                raise RuntimeError(process.exit_reason)
            await asyncio.sleep(READY_INTERVAL_S)
        log.info("the %s serves at %s", process.role, process.address)
        self._processes.append(process)
        await self._announce(process)

    def _on_end(self, process: ServiceProcess) -> None:
        """Called on the process's own thread."""
        if process in self._processes:
            print(process.exit_reason, flush=True)
            asyncio.run_coroutine_threadsafe(self._restart(process), self._loop)

    async def _restart(self, ended: ServiceProcess) -> None:
        """Starts a process again, sooner than Ray starts another replica, and also while Ray's head is away."""
        self._processes.remove(ended)
        try:
            started = self._start(ended.plan)
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                await asyncio.wait_for(self._leave(ended), GOODBYE_S)
            # If the directory is away, it is told later.
            with contextlib.suppress(ray.exceptions.RayError):
                await self._add(started)
        except (RuntimeError, OSError) as error:
            # Perhaps it can't start on this node.
            print(error, flush=True)
            shutil.rmtree(self._folder, ignore_errors=True)
            end_now()

    async def _announce(self, process: ServiceProcess) -> None:
        demand = Demand()
        if process.role == "coordinator":
            with contextlib.suppress(OSError, http.client.HTTPException):
                demand = await asyncio.to_thread(process.meter.demand)
        await self._directory.renew.remote(process.role, process.instance, process.address, demand)

    async def _leave(self, process: ServiceProcess) -> None:
        await self._directory.leave.remote(process.instance)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_S)
            try:
                for each in self._processes:
                    await self._announce(each)
            except Exception as error:
                await self._find_directory(error)

    async def _follow(self, roles: Sequence[str], listed: asyncio.Event) -> None:
        """Keeps the files as the directory says. While it can't be asked or they can't be written, they stay as they are."""
        seen = NOTHING_SEEN
        while True:
            try:
                version, lists = await self._directory.lists.remote(seen)
                await asyncio.to_thread(self._write, roles, lists)
            except Exception as error:
                await self._find_directory(error)
                continue
            seen = version
            if all(role in lists for role in roles):
                listed.set()

    def _write(self, roles: Sequence[str], lists: Lists) -> None:
        for role in roles:
            whole = self._folder / f"{role}.new"
            whole.write_text("".join(f"{address}\n" for address in lists.get(role, [])))
            os.replace(whole, self._folder / role)

    async def _find_directory(self, error: Exception) -> None:
        log.warning("the directory is asked again: %s", error)
        await asyncio.sleep(RETRY_S)
        # While Ray's head is away, the next question fails too.
        with contextlib.suppress(Exception):
            self._directory = await asyncio.to_thread(directory_of, self._group)
