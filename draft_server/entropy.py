"""The entropy rule: stops drafting where the draft model's entropy is high.

The rule never looks at a sampled token. A rule that drops a token because of its value would bias the output. The
coordinator keeps the rule's state between rounds and advances it only over decided positions, so the draft server keeps
no state of a sequence beside its cache.
"""

from paceline.speculation import EntropyAdaptive


class EntropyStop:
    """k = round(max - (max - min) * H), with H the smoothed entropy divided by ln(vocab_size)."""

    def __init__(self, rule: EntropyAdaptive, ema: float) -> None:
        """`ema`: the smoothed entropy so far, in [0, 1]."""
        self._rule = rule
        self._ema = ema
        self.entropies: list[float] = []
        self.emas: list[float] = []

    def see(self, entropy: float) -> None:
        """Takes the entropy at the next position, in [0, 1]."""
        beta = self._rule.ema_beta
        self._ema = beta * self._ema + (1 - beta) * entropy
        self.entropies.append(entropy)
        self.emas.append(self._ema)

    def allows(self, num_drafted: int) -> bool:
        """Whether the rule allows one more token after `num_drafted` tokens."""
        bounds = self._rule.bounds
        return num_drafted < round(bounds.max - (bounds.max - bounds.min) * self._ema)
