"""What rounds take that the target goes on with by itself, beside their forward passes.

They wait for no message. But where the target's cores are also the coordinator's, messages then take time of forward passes.
"""

import enum
from dataclasses import dataclass, field

from paceline.recent_mean import RecentMean

# Weight of the newest round.
RECENT = 0.05


class Began(enum.Enum):
    """How a round began: by a command that the target waited for, or by itself; and whether drafts for the next one were sent
    to the target meanwhile."""

    ASKED = enum.auto()
    FREE = enum.auto()
    SUGGESTING = enum.auto()


@dataclass(slots=True)
class FreeRounds:
    """Seconds beside forward passes as long as those that are asked for, at one level of concurrency."""

    _free: RecentMean = field(default_factory=lambda: RecentMean(RECENT))
    _suggesting: RecentMean = field(default_factory=lambda: RecentMean(RECENT))

    def learn(self, began: Began, overhead_s: float, message_s: float) -> None:
        """Learns from a round. `message_s`: what a round waits for that is asked for."""
        if began is Began.FREE:
            self._free.add(overhead_s)
        elif began is Began.SUGGESTING:
            self._suggesting.add(overhead_s)
        elif began is Began.ASKED:
            # A measurement that was disturbed is repeated some day.
            self._free.value -= RECENT * self._free.value
            self._suggesting.value += RECENT * (self._free.value + message_s / 2 - self._suggesting.value)

    def saves_s(self, message_s: float) -> float:
        """Predicts what a round without drafts saves by going on."""
        # Answers that a busy coordinator reads together seem to take no time; but a round takes its forward pass.
        return message_s - max(0.0, self._free.value)

    def suggestion_s(self, message_s: float) -> float:
        """Predicts what it takes of such a round's time to send drafts for the next one."""
        if not self._suggesting.num_seen:
            return message_s / 2
        # Not so much that it is never tried again.
        return min(message_s, max(0.0, self._suggesting.value - self._free.value))
