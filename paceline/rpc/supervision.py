"""What a service knows of the process that started it (`paceline up`): it ends with it, and can be told from others.

Two services may want the same address. Who answers there is known by the instance: a random name that the supervisor
gives each process, and that the process's health service knows.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

# "PID INSTANCE", set by the supervisor.
VARIABLE = "PACELINE_SUPERVISOR"
# prctl(2): the signal that this process gets when its parent's thread ends.
_PR_SET_PDEATHSIG = 1


def environment(instance: str) -> dict[str, str]:
    """This process's environment, for a service that it starts."""
    return {**os.environ, VARIABLE: f"{os.getpid()} {instance}"}


def instance_of(variables: Mapping[str, str]) -> str | None:
    """The name of the health service by which the supervisor knows this process; None without a supervisor."""
    _, _, instance = variables.get(VARIABLE, "").partition(" ")
    return f"instance.{instance}" if instance else None


def end_with_supervisor() -> None:
    """Asks the system for a SIGTERM when the supervisor dies, however it dies. Linux only; elsewhere does nothing."""
    pid, _, _ = os.environ.get(VARIABLE, "").partition(" ")
    if not pid or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(pid):
        # It died before it could be asked for.
        sys.exit(1)
