"""Records made by hand, and the command line."""

from paceline.client import Finish, Speculation, Timing
from paceline.loadtest.metrics import Arrival, Failure, Record
from tests.cli.conftest import paceline

__all__ = ["failed", "make_finish", "make_record", "paceline"]


def make_finish(
    rounds: int = 1,
    proposed: tuple[int, ...] = (),
    accepted: tuple[int, ...] = (),
    length: float = 1.0,
    **times_ms: float,
) -> Finish:
    """A finish with these figures; times that are not given are 0."""
    names = ("ttft_ms", "total_ms", "draft_ms", "target_ms", "queued_ms", "rpc_ms")
    return Finish(
        reason="length", prompt_tokens=10, cached_prompt_tokens=4, completion_tokens=3, seed=1,
        speculation=Speculation(rounds, sum(proposed), sum(accepted), list(proposed), list(accepted), length),
        timing=Timing(**{name: times_ms.get(name, 0.0) for name in names}),
    )  # fmt: skip


def make_record(*arrivals: tuple[float, int], finish: Finish | None = None, index: int = 0) -> Record:
    """A request that succeeded; arrivals in milliseconds, with their tokens."""
    return Record(index, tuple(Arrival(*each) for each in arrivals), finish or make_finish())


def failed(status: str, message: str = "no", index: int = 0) -> Record:
    return Record(index, (), failure=Failure(status, message))
