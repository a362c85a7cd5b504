"""The watchdog: exits the process if an engine step hangs, so that its supervisor restarts it.

Such a server still answers calls but no commands, and clients can't tell it from a slow one.
"""

import asyncio
import logging
import os
import threading

from paceline.engine.scheduling.worker import Worker

log = logging.getLogger(__name__)
# The exit status of a process that ends itself (EX_SOFTWARE of sysexits.h).
STATUS = 70
LOOK_S = 1.0


async def watch(worker: Worker, timeout_s: float) -> None:
    """Runs until cancelled. Ends the process when a step takes longer than `timeout_s`."""
    while True:
        await asyncio.sleep(min(LOOK_S, timeout_s / 4))
        if worker.step_s > timeout_s:
            log.critical("an engine step has taken longer than %g s (step_timeout); the server exits", timeout_s)
            _end()


def end_after(seconds: float) -> threading.Timer:
    """Ends the process after `seconds`, even if its threads hang, unless the timer is cancelled."""
    timer = threading.Timer(seconds, _end)
    timer.daemon = True
    timer.start()
    return timer


def _end() -> None:
    # An exception would wait for the device thread.
    os._exit(STATUS)
