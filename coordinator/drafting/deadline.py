"""How long to wait for a draft: a draft server that hangs must not hold up a generation.

A draft is worth waiting for while it takes about as long as others did. What it takes depends on the model and on how
much of the context it must read, so times are learned by the token, and shared by all generations.
"""

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
