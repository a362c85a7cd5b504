"""Draft timeouts, learned per token: a hanging draft server delays no one for long."""

import asyncio
import time

from paceline.recent_mean import RecentMean
from paceline.rpc.heartbeat import SILENT_S

# Before the first draft, which may have to prefill a long prompt.
FIRST_TIMEOUT_S = 30.0
# A stopped server counts as silent before the next attempt.
MIN_TIMEOUT_S = SILENT_S
# Multiple of the average time.
TIMEOUT_FACTOR = 10.0
# Weight of the newest time in the average.
SMOOTHING = 0.1


class DraftDeadline:
    def __init__(self) -> None:
        self._token_s = RecentMean(SMOOTHING)

    def seconds(self, num_tokens: int) -> float:
        if not self._token_s.num_seen:
            return FIRST_TIMEOUT_S
        return MIN_TIMEOUT_S + TIMEOUT_FACTOR * self._token_s.value * num_tokens

    def learn(self, num_tokens: int, seconds: float) -> None:
        self._token_s.add(seconds / max(1, num_tokens))


class DraftWait:
    """Restarts when the command is sent again with a longer tail."""

    def __init__(self, deadline: DraftDeadline) -> None:
        self._deadline = deadline
        self._sent_s = time.monotonic()
        self._num_draft_tokens = 0
        self.num_tail_tokens = 0
        # Enter this context around the wait. `begin` sets the time, for a timer of its own would be set twice.
        self.limit = asyncio.timeout(None)

    def begin(self, num_tail_tokens: int, num_draft_tokens: int) -> None:
        """Call inside `limit`."""
        self.num_tail_tokens, self._num_draft_tokens = num_tail_tokens, num_draft_tokens
        self._sent_s = time.monotonic()
        seconds = self._deadline.seconds(num_tail_tokens + num_draft_tokens)
        self.limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def learn(self) -> None:
        self._deadline.learn(self.num_tail_tokens + self._num_draft_tokens, self.seconds)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._sent_s
