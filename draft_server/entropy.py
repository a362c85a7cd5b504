"""How far to draft by the draft model's entropy, decided before a token is drawn.

The rule never looks at a drawn token: one that did, and then dropped that token, would
bias the output. Its state travels: the coordinator keeps it, advanced over decided
positions only, so the cache is all there is to know about a sequence here.
"""

from paceline.sampling import EntropyAdaptive


class EntropyStop:
    """k = round(max - (max - min) * H), H the entropy over ln(vocabulary), smoothed."""

    def __init__(self, rule: EntropyAdaptive, ema: float) -> None:
        """`ema`: the smoothed entropy so far, in [0, 1]."""
        self._rule = rule
        self._ema = ema
        self.entropies: list[float] = []
        self.emas: list[float] = []

    def see(self, entropy: float) -> None:
        """The entropy at the next position, in [0, 1]."""
        beta = self._rule.ema_beta
        self._ema = beta * self._ema + (1 - beta) * entropy
        self.entropies.append(entropy)
        self.emas.append(self._ema)

    def allows(self, num_drafted: int) -> bool:
        """Whether one more token may follow `num_drafted` ones."""
        bounds = self._rule.bounds
        return num_drafted < round(bounds.max - (bounds.max - bounds.min) * self._ema)
