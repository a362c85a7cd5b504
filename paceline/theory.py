"""What speculation is worth in theory: used by `paceline plan` and by adaptive k (`expected_tokens`).

alpha: chance that one proposed token is accepted. k: tokens proposed in a round.
c: time of a draft step over time of a target forward; wire: a round's messages, in the
same unit. Leviathan, Kalman, Matias (2211.17192): equation 1, theorems 3.8 and 3.11.
"""

from collections.abc import Iterator


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


def speedup(alpha: float, k: int, c: float, wire: float = 0.0) -> float:
    """Expected speed over plain decoding (theorem 3.8), with the wire's time added to each round."""
    return tokens_per_round(alpha, k) / (c * k + 1 + wire)


def operations(alpha: float, k: int, c_operations: float) -> float:
    """Expected arithmetic over plain decoding's (theorem 3.11). `c_operations`: a draft step's over a target row's."""
    return (c_operations * k + k + 1) / tokens_per_round(alpha, k)


def best_k(alpha: float, c: float, wire: float = 0.0, longest: int = 16) -> int:
    """The number of draft tokens, 0 to `longest`, that is fastest; 0 where speculation does not pay.

    Without drafts a round has its wire time too, so k = 0 is compared with it.
    """
    return max(range(longest + 1), key=lambda k: (speedup(alpha, k, c, wire), -k))
