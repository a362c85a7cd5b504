"""One request as its client saw it."""

from dataclasses import dataclass

from paceline.client import Finish


@dataclass(frozen=True, slots=True)
class Arrival:
    """A response with tokens: when it came, in milliseconds since its request was due, and how many it brought."""

    at_ms: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """How a request failed: the gRPC status code's name, and what the server said."""

    status: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """Times in milliseconds since the request was due.

    In a closed loop a request is due when it is sent. In an open loop it is due when the arrival process
    says: a harness that comes late counts against the server rather than going unseen.
    """

    index: int
    arrivals: tuple[Arrival, ...]
    finish: Finish | None = None
    failure: Failure | None = None

    @property
    def is_ok(self) -> bool:
        return self.failure is None

    @property
    def tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token; None if none came."""
        return self.arrivals[0].at_ms if self.arrivals else None

    @property
    def e2e_ms(self) -> float | None:
        """Time to the last token; None if none came."""
        return self.arrivals[-1].at_ms if self.arrivals else None

    @property
    def gaps(self) -> list[Arrival]:
        """For each response after the first: milliseconds *per token* since the one before, and its tokens.

        This is inter-token latency as the client sees it. A round's tokens come in one response; each of
        them counts with an equal part of the time since the last response.
        """
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [Arrival((late.at_ms - early.at_ms) / late.tokens, late.tokens) for early, late in pairs]

    @property
    def mean_itl_ms(self) -> float | None:
        """Mean inter-token latency of this request; None where all its tokens came at once."""
        if len(self.arrivals) < 2:
            return None
        first, last = self.arrivals[0], self.arrivals[-1]
        return (last.at_ms - first.at_ms) / (self.tokens - first.tokens)
