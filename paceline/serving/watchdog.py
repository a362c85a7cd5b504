"""Watches the device thread, and ends a process that can do no more.

A device that hangs leaves a server that answers every call but never one of its commands. Its clients can't tell it from
a slow one. So the server ends itself, and whoever runs it starts it again.
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


async def watch(worker: Worker, most_s: float) -> None:
    """Runs until cancelled. Ends the process when a step takes longer than `most_s`."""
    while True:
        await asyncio.sleep(min(LOOK_S, most_s / 4))
        if worker.step_s > most_s:
            log.critical("an engine step has taken longer than %g s (step_timeout), so this server ends", most_s)
            _end()


def end_after(seconds: float) -> threading.Timer:
    """Ends the process after `seconds`, whatever its threads wait for, unless the timer is cancelled."""
    timer = threading.Timer(seconds, _end)
    timer.daemon = True
    timer.start()
    return timer


def _end() -> None:
    # Not by an exception: the device thread would be waited for.
    os._exit(STATUS)
