"""When a fault falls: seen in what passes a link, and never guessed from the time."""

import asyncio
import enum
from collections.abc import Callable

from tests.faults.proxy import Proxy
from tests.faults.traffic import Command

POLL_S = 0.005
# How long after a prompt's command has passed the fault falls: the server is reading it then.
READING_S = 0.004


class Phase(enum.StrEnum):
    """Of a generation."""

    # A Verify or Propose with a prompt has passed, and its answer has not come out of the server.
    PREFILL = "prefill"
    # No Verify and no Propose is with the server, and the next is held back.
    BETWEEN = "between"
    # A later Verify or Propose has passed, and its answer has not come out of the server.
    MID = "mid"

    @property
    def is_in_first_round(self) -> bool:
        return self is Phase.PREFILL

    def wants(self, command: Command) -> bool:
        return command.reads_prompt == (self is Phase.PREFILL)


class Striker:
    """Calls `strike` in a phase, as seen at `proxy`. Make it before the load starts."""

    def __init__(self, phase: Phase, proxy: Proxy, strike: Callable[[], None], attempt: int) -> None:
        """`attempt`: from 0; the more there were, the sooner a prompt's fault falls."""
        self._phase = phase
        self._proxy = proxy
        self._strike = strike
        self._delay_s = READING_S / 2**attempt if phase is Phase.PREFILL else 0.0
        self._is_over = False
        self.has_struck = asyncio.Event()
        self._error: Exception | None = None

    async def run(self) -> None:
        """Returns when it has struck, or raises what `strike` raised. Cancel it when there is nothing left to disturb."""
        try:
            if self._phase is Phase.BETWEEN:
                self._proxy.hold_commands()
                while not self._proxy.is_between:
                    await asyncio.sleep(POLL_S)
                self._strike_now()
            else:
                self._lie_in_wait()
                await self.has_struck.wait()
            if self._error is not None:
                raise self._error
        finally:
            self._is_over = True
            self._proxy.release()

    def _lie_in_wait(self) -> None:
        self._proxy.lie_in_wait(self._phase.wants, self._sprung)

    def _sprung(self) -> None:
        """A command of the phase has passed."""
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._strike_in_phase)
        else:
            self._strike_in_phase()

    def _strike_in_phase(self) -> None:
        if self._is_over:
            return
        if self._proxy.has_with_server(self._phase.wants):
            self._strike_now()
        else:
            # Its answer came sooner. The next one's may not.
            self._proxy.release()
            self._lie_in_wait()

    def _strike_now(self) -> None:
        try:
            self._strike()
        except Exception as error:
            # The caller is the proxy, which would take it for a broken connection.
            self._error = error
        self.has_struck.set()
