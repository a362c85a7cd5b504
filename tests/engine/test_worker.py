"""The worker's end: asked for, or by a fault that must not go unnoticed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine, build_engine


async def build_tiny(device_thread: ThreadPoolExecutor) -> Engine:
    config = EngineConfig(model="dummy:tiny", dtype="float32", kv_cache_bytes=1 << 20, block_size=16, threads=1)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(device_thread, lambda: build_engine(config, loop))


async def test_a_worker_that_is_stopped_ends_without_a_fault() -> None:
    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker.start(device_thread, checks_integrity=True)
        await engine.worker.call(lambda: None)
        engine.worker.stop()
        await engine.worker.wait_stopped()


async def test_books_that_do_not_balance_end_the_worker_and_say_so() -> None:
    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker.start(device_thread, checks_integrity=True)
        # A block that no sequence holds.
        await engine.worker.call(lambda: engine.pool.allocate(1))
        with pytest.raises(AssertionError, match="block 0: count 1, held 0"):
            await engine.worker.wait_stopped()
