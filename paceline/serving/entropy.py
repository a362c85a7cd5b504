"""The entropy rule: stops drafting when the draft model's entropy is high.

It never looks at a sampled token, because dropping a token for its value would bias the output. The coordinator keeps
its state and advances it over decided positions.
"""

import numpy as np

from paceline.speculation_params import EntropyAdaptive


class EntropyStop:
    def __init__(self, rule: EntropyAdaptive, ema: float) -> None:
        """`ema`: the smoothed entropy so far, in [0, 1]."""
        self._rule = rule
        self._ema = ema
        self.entropies: list[float] = []
        self.emas: list[float] = []

    def see(self, entropy: float) -> None:
        """Adds the entropy at the next position, in [0, 1]."""
        beta = self._rule.ema_beta
        # Round to float32, as messages do, so that k can be recomputed from what was reported.
        self._ema = float(np.float32(beta * self._ema + (1 - beta) * entropy))
        self.entropies.append(entropy)
        self.emas.append(self._ema)

    def skip(self) -> None:
        """Adds a position whose token is forced, which leaves the average as it is."""
        self.entropies.append(0.0)
        self.emas.append(self._ema)

    def allows(self, num_drafted: int) -> bool:
        return num_drafted < self._rule.allowed_draft_tokens(self._ema)
