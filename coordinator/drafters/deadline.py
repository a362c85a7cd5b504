"""Limits how long a generation waits for a draft, so that a draft server that hangs delays nobody for long.

The time of a draft depends on the model and on how much context it must read. So times are learned per token, over all
generations.
"""

import asyncio
import time

# Until a time is known: a large model may have to read a long prompt first.
FIRST_TIMEOUT_S = 30.0
# At least the link's SILENT_S, so that a stopped server counts as silent before it is asked again.
MIN_TIMEOUT_S = 2.0
# Multiple of the usual time after which a draft is given up.
TIMEOUT_FACTOR = 10.0
# Weight of the newest time.
SMOOTHING = 0.1


class DraftDeadline:
    """Learns from all drafts of one draft server."""

    def __init__(self) -> None:
        self._token_s = 0.0

    def seconds(self, num_tokens: int) -> float:
        """Returns the timeout of a draft that reads or makes `num_tokens` tokens."""
        if self._token_s == 0:
            return FIRST_TIMEOUT_S
        return MIN_TIMEOUT_S + TIMEOUT_FACTOR * self._token_s * num_tokens

    def learn(self, num_tokens: int, seconds: float) -> None:
        token_s = seconds / max(1, num_tokens)
        self._token_s = token_s if self._token_s == 0 else self._token_s + SMOOTHING * (token_s - self._token_s)


class DraftWait:
    """The wait for one draft. It starts again whenever the command is sent again, with a longer tail."""

    def __init__(self, deadline: DraftDeadline) -> None:
        self._deadline = deadline
        self._sent_s = time.monotonic()
        self._num_draft_tokens = 0
        # Tail tokens of the newest command.
        self.num_tail_tokens = 0
        # A context manager around the wait, which raises TimeoutError.
        self.limit = asyncio.timeout(deadline.seconds(0))

    def begin(self, num_tail_tokens: int, num_draft_tokens: int) -> None:
        """Starts the wait when a command is sent. Called inside `limit`."""
        self.num_tail_tokens, self._num_draft_tokens = num_tail_tokens, num_draft_tokens
        self._sent_s = time.monotonic()
        seconds = self._deadline.seconds(num_tail_tokens + num_draft_tokens)
        self.limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def learn(self) -> None:
        self._deadline.learn(self.num_tail_tokens + self._num_draft_tokens, self.seconds)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._sent_s
