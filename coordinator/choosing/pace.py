"""How many tokens come in the time of a round without drafts."""

# Factor on the weight of older rounds, for each new one.
MEMORY = 0.95
# What is known before counts as this many rounds without drafts.
BEFORE = 8.0


class Pace:
    """Tokens in the time of a plain round, at least 1: what a plain round's time is worth."""

    def __init__(self, before: "Pace | None" = None) -> None:
        self._before = before
        # Tokens, and time in plain rounds.
        self._tokens = self._rounds = 0.0

    @property
    def tokens(self) -> float:
        before = 1.0 if self._before is None else self._before.tokens
        return max(1.0, (BEFORE * before + self._tokens) / (BEFORE + self._rounds))

    def learn(self, num_tokens: int, plain_rounds: float) -> None:
        self._tokens = MEMORY * self._tokens + num_tokens
        self._rounds = MEMORY * self._rounds + plain_rounds
