"""The theory of speculative decoding: Leviathan, Kalman, Matias (2211.17192).

alpha: probability that a draft token is accepted. k: draft tokens per round (the paper's gamma).
In target forward passes: c, a draft step; rpc_cost, a round's messages; verify, what each draft adds to a target forward pass. The
paper has neither rpc_cost nor verify.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


def expected_tokens(alpha: float, longest: int) -> Iterator[float]:
    """Yields the tokens of a round for each k from 0 to `longest`: 1 + alpha + ... + alpha^k (equation 1)."""
    tokens = chance = 1.0
    yield tokens
    for _ in range(longest):
        chance *= alpha
        tokens += chance
        yield tokens


def tokens_per_round(alpha: float, k: int) -> float:
    """Returns 1 to k + 1 (equation 1)."""
    *_, tokens = expected_tokens(alpha, k)
    return tokens


def accepted_per_round(alpha: float, k: int) -> float:
    return tokens_per_round(alpha, k) - 1


def target_reads(alpha: float, k: int) -> float:
    """Returns reads of weights and cache per token, relative to plain decoding (section 3.4)."""
    return 1 / tokens_per_round(alpha, k)


def round_time(k: int, c: float, rpc_cost: float = 0.0, verify: float = 0.0) -> float:
    return (c + verify) * k + 1 + rpc_cost


def speedup(alpha: float, k: int, c: float, rpc_cost: float = 0.0, verify: float = 0.0) -> float:
    """Returns speed relative to plain decoding without RPCs (theorem 3.8)."""
    return tokens_per_round(alpha, k) / round_time(k, c, rpc_cost, verify)


def operations(alpha: float, k: int, c_operations: float) -> float:
    """Returns arithmetic per token relative to plain decoding (theorem 3.11). `c_operations`: a draft step, in target
    tokens.
    """
    return (c_operations * k + k + 1) / tokens_per_round(alpha, k)


def best_k(alpha: float, c: float, rpc_cost: float = 0.0, longest: int = 16, verify: float = 0.0) -> int:
    """Returns the fastest k, 0 to `longest`. Rounds without drafts have RPC time too."""
    tokens = enumerate(expected_tokens(alpha, longest))
    speeds = [expected / round_time(k, c, rpc_cost, verify) for k, expected in tokens]
    return speeds.index(max(speeds))


def oracle_tokens(alpha: float) -> float:
    return math.inf if alpha == 1 else 1 / (1 - alpha)


def oracle_speedup(alpha: float, c: float, rpc_cost: float = 0.0, verify: float = 0.0) -> float:
    """Returns the speed of an oracle, which drafts exactly what will be accepted (section 3.5); may be infinite.

    An accepted token costs a draft step and its verification, a round's last token a target forward pass and the RPCs. No
    token costs more than that: without drafts, every token does.
    """
    own = 1 + rpc_cost
    time = (1 - alpha) * own + alpha * min(c + verify, own)
    return math.inf if time == 0 else 1 / time


@dataclass(frozen=True, slots=True)
class Forecast:
    alpha: float
    draft_cost: float
    rpc_cost: float
    operations_cost: float
    longest: int
    verify_cost: float = 0.0

    @property
    def best(self) -> int:
        return best_k(self.alpha, self.draft_cost, self.rpc_cost, self.longest, self.verify_cost)

    @property
    def costs(self) -> str:
        verify = f", verify cost {self.verify_cost:.3g}" if self.verify_cost > 0 else ""
        return f"draft cost {self.draft_cost:.3g}, RPC cost {self.rpc_cost:.3g}{verify}"

    @property
    def oracle_speed(self) -> float:
        return oracle_speedup(self.alpha, self.draft_cost, self.rpc_cost, self.verify_cost)

    def speed(self, k: int) -> float:
        """Returns speed relative to plain decoding in one process, without RPCs."""
        return speedup(self.alpha, k, self.draft_cost, self.rpc_cost, self.verify_cost)

    def gain(self, k: int) -> float:
        """Returns speed relative to plain decoding on the same services."""
        return self.speed(k) / self.speed(0)

    def rows(self) -> list[dict[str, Any]]:
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
        figures = {
            "tokens_per_round": oracle_tokens(self.alpha),
            "speedup": self.oracle_speed,
            "over_best_k": self.oracle_speed / self.speed(self.best),
        }
        return {name: None if math.isinf(figure) else figure for name, figure in figures.items()}
