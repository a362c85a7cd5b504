"""What speculation is worth in theory: used by `paceline plan` and by adaptive k (`expected_tokens`).

alpha: chance that one proposed token is accepted. k: tokens proposed in a round.
c: time of a draft step over time of a target forward. wire: a round's messages, in the same unit. verify: what each
drafted row adds to the time of a target forward, in the same unit; the paper has 0.
Leviathan, Kalman, Matias (2211.17192): equation 1, theorems 3.8 and 3.11, sections 3.4 and 3.5.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


def expected_tokens(alpha: float, longest: int) -> Iterator[float]:
    """Expected tokens of one target forward with k drafts, for each k from 0 to `longest`: 1 + alpha + ... + alpha^k
    (equation 1). Adaptive k asks for all of them in every round: each costs one product and one sum."""
    tokens = chance = 1.0
    yield tokens
    for _ in range(longest):
        chance *= alpha
        tokens += chance
        yield tokens


def tokens_per_round(alpha: float, k: int) -> float:
    """Expected tokens of one target forward with k drafts, 1 to k + 1."""
    *_, tokens = expected_tokens(alpha, k)
    return tokens


def accepted_per_round(alpha: float, k: int) -> float:
    """Expected drafts that are accepted in a round, 0 to k: equation 1 without the token that is the target's own."""
    return tokens_per_round(alpha, k) - 1


def target_reads(alpha: float, k: int) -> float:
    """How often the target's weights and cache are read for a token, over plain decoding's once (section 3.4)."""
    return 1 / tokens_per_round(alpha, k)


def round_time(k: int, c: float, wire: float = 0.0, verify: float = 0.0) -> float:
    """Time of a round with k drafts, in target forwards of one row."""
    return (c + verify) * k + 1 + wire


def speedup(alpha: float, k: int, c: float, wire: float = 0.0, verify: float = 0.0) -> float:
    """Expected speed over plain decoding (theorem 3.8), with the wire's and the drafted rows' time in each round."""
    return tokens_per_round(alpha, k) / round_time(k, c, wire, verify)


def guessed_draft_steps(beta: float, num_guesses: int, k: int, wide: float) -> float:
    """Expected time to draft k tokens where a faster drafter guesses the draft model's own next tokens, in draft steps: the
    hierarchical version that section 6 proposes.

    beta: chance that a guess behind right ones is the draft model's own token. num_guesses: g, from 0 to k - 1, checked in
    the first forward. wide: time of that forward, of g + 1 rows, over a draft step's. It brings 1 + beta + … + beta^g of
    the tokens (equation 1, one level down), and each other token takes a step. So guesses pay where
    beta + … + beta^g > wide - 1.
    """
    return wide + k - tokens_per_round(beta, num_guesses)


def operations(alpha: float, k: int, c_operations: float) -> float:
    """Expected arithmetic over plain decoding's (theorem 3.11). `c_operations`: a draft step's over a target row's."""
    return (c_operations * k + k + 1) / tokens_per_round(alpha, k)


def best_k(alpha: float, c: float, wire: float = 0.0, longest: int = 16, verify: float = 0.0) -> int:
    """The number of draft tokens, 0 to `longest`, that is fastest; 0 where speculation does not pay.

    Without drafts a round has its wire time too, so k = 0 is compared with it.
    """
    tokens = enumerate(expected_tokens(alpha, longest))
    speeds = [expected / round_time(k, c, wire, verify) for k, expected in tokens]
    return speeds.index(max(speeds))


def oracle_tokens(alpha: float) -> float:
    """Expected tokens of a round whose k is the number of drafts that will be accepted, however many: 1 / (1 - alpha)
    (section 3.5); infinite where no draft is ever rejected."""
    return math.inf if alpha == 1 else 1 / (1 - alpha)


def oracle_speedup(alpha: float, c: float, wire: float = 0.0, verify: float = 0.0) -> float:
    """Expected speed over plain decoding with that k (section 3.5), of which the paper says that it can be some 60 %
    above the best fixed k. Nothing is drafted in vain, so an accepted token costs a draft step and a row, and the last
    of a round a target forward and the wire. Where drafts cost more than that, none are made. It may be infinite."""
    own = 1 + wire
    time = (1 - alpha) * own + alpha * min(c + verify, own)
    return math.inf if time == 0 else 1 / time


@dataclass(frozen=True, slots=True)
class Forecast:
    """The theory at one alpha and one set of costs, for k = 0 to `longest`. Costs in target forwards."""

    alpha: float
    draft_cost: float
    wire: float
    operations_cost: float
    longest: int
    # What each drafted row adds to the time of a target forward.
    verify_cost: float = 0.0

    @property
    def best(self) -> int:
        return best_k(self.alpha, self.draft_cost, self.wire, self.longest, self.verify_cost)

    @property
    def costs(self) -> str:
        """In words, those that are 0 left out but for the draft's and the wire's."""
        verify = f", verify cost {self.verify_cost:.3g}" if self.verify_cost > 0 else ""
        return f"draft cost {self.draft_cost:.3g}, wire {self.wire:.3g}{verify}"

    @property
    def oracle_speed(self) -> float:
        """Where each round's first rejection is known ahead, over plain decoding in one process; may be infinite."""
        return oracle_speedup(self.alpha, self.draft_cost, self.wire, self.verify_cost)

    def speed(self, k: int) -> float:
        """Over plain decoding in one process, which has no wire."""
        return speedup(self.alpha, k, self.draft_cost, self.wire, self.verify_cost)

    def gain(self, k: int) -> float:
        """Over plain decoding by the same services, whose rounds have their wire too."""
        return self.speed(k) / self.speed(0)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each k."""
        return [
            {
                "k": k,
                "accepted_per_round": accepted_per_round(self.alpha, k),
                "tokens_per_round": tokens_per_round(self.alpha, k),
                "speedup": self.speed(k),
                "speedup_over_k0": self.gain(k),
                "operations": operations(self.alpha, k, self.operations_cost),
                "target_reads": target_reads(self.alpha, k),
            }
            for k in range(self.longest + 1)
        ]

    def oracle(self) -> dict[str, float | None]:
        """An oracle's figures; None where there is no bound."""
        figures = {
            "tokens_per_round": oracle_tokens(self.alpha),
            "speedup": self.oracle_speed,
            "over_best_k": self.oracle_speed / self.speed(self.best),
        }
        return {name: None if math.isinf(figure) else figure for name, figure in figures.items()}
