"""An event loop in a thread of its own, for programs that have none."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from paceline.errors import Unavailable

# How long an interrupted call may take to end.
STOP_TIMEOUT_S = 5.0
WAKE_UP_S = 0.5
CLOSED = "the client is closed"


class LoopThread:
    """Runs what is awaited, for any number of threads, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Whoever finds it open hands over before the end is handed over.
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self, awaitable: Any) -> Any:
        """What `awaitable` comes to. Raises Unavailable where the loop is closed, before or meanwhile."""
        ended = threading.Event()

        async def run() -> Any:
            try:
                return await awaitable
            finally:
                ended.set()

        with self._lock:
            future = None if self._is_closed else asyncio.run_coroutine_threadsafe(run(), self._loop)
        if future is None:
            # Python warns of what is never awaited.
            awaitable.close()
            raise Unavailable(CLOSED)
        try:
            while not future.done():
                # A Ctrl-C that comes just before a thread blocks is seen when it wakes up, and not earlier.
                concurrent.futures.wait((future,), timeout=WAKE_UP_S)
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable(CLOSED) from None
        except KeyboardInterrupt:
            future.cancel()
            # The caller closes what is awaited, which must not run then.
            ended.wait(STOP_TIMEOUT_S)
            raise

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Ends all that is awaited, and `last` before; returns when the thread has ended. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _end(self, last: Callable[[], Awaitable[None]]) -> None:
        try:
            await last()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            # Those that nobody awaits just now: Python would complain when they are dropped.
            await self._loop.shutdown_asyncgens()
        finally:
            self._loop.stop()
