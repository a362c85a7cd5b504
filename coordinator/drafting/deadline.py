"""How long to wait for a draft: a draft server that hangs must not hold up a generation.

A draft is worth waiting for while it takes about as long as others did. What it takes depends on the model and on how
much of the context it must read, so times are learned by the token, and shared by all generations.
"""

import asyncio
import time

# Until a time is known: a large model may have to read a long prompt first.
UNKNOWN_S = 30.0
# Waiting at least this long costs little, and servers pause for reasons of their own. Not shorter than the link's SILENT_S:
# so a server that has stopped is not asked again before it is heard.
LEAST_S = 2.0
# A draft may take this many times as long as is usual.
PATIENCE = 10.0
# Weight of the newest time.
RECENT = 0.1


class DraftDeadline:
    """Learns from all drafts of one draft server."""

    def __init__(self) -> None:
        self._token_s = 0.0

    def seconds(self, num_tokens: int) -> float:
        """Until when a draft that feeds or makes `num_tokens` tokens should be there."""
        if self._token_s == 0:
            return UNKNOWN_S
        return LEAST_S + PATIENCE * self._token_s * num_tokens

    def learn(self, num_tokens: int, seconds: float) -> None:
        """A draft took so long, waiting included."""
        token_s = seconds / max(1, num_tokens)
        self._token_s = token_s if self._token_s == 0 else self._token_s + RECENT * (token_s - self._token_s)


class DraftWait:
    """The wait for one draft. It begins anew whenever the command is sent: behind a correction of what the draft server's
    cache holds, it brings a longer tail along."""

    def __init__(self, deadline: DraftDeadline) -> None:
        self._deadline = deadline
        self._sent_s = time.monotonic()
        self._num_draft_tokens = 0
        # Tokens that the newest command brought along.
        self.num_tail_tokens = 0
        # A context for the wait, which raises TimeoutError.
        self.limit = asyncio.timeout(deadline.seconds(0))

    def begin(self, num_tail_tokens: int, num_draft_tokens: int) -> None:
        """A command is sent. Called inside of `limit`."""
        self.num_tail_tokens, self._num_draft_tokens = num_tail_tokens, num_draft_tokens
        self._sent_s = time.monotonic()
        seconds = self._deadline.seconds(num_tail_tokens + num_draft_tokens)
        self.limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def learn(self) -> None:
        """The draft is there."""
        self._deadline.learn(self.num_tail_tokens + self._num_draft_tokens, self.seconds)

    @property
    def seconds(self) -> float:
        """Since the newest command was sent."""
        return time.monotonic() - self._sent_s
