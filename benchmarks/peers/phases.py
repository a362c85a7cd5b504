"""Prefill and decoding speeds, from the times for one new token and for more.

Only undisturbed requests count, or else the least disturbed one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.memory_bandwidth import Bandwidth
from benchmarks.peers.contest import QUIET, Row


@dataclass(frozen=True, slots=True)
class Phase:
    """Tokens per second in a phase, one figure per undisturbed request."""

    speeds: list[float]

    @property
    def median(self) -> float:
        return median(self.speeds)

    @property
    def best(self) -> float:
        """The maximum, since disturbances only slow."""
        return max(self.speeds)


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A contender's speeds at a batch size, summed over sequences."""

    name: str
    at_once: int
    prompt: Phase
    decode: Phase
    # Others' share of the cores' time, in the turn with the largest share.
    others: float


class Phases:
    """All contenders' phases, and their share of memory bandwidth in decoding."""

    def __init__(self, rows: Sequence[Row], weight_bytes: int, readers: set[str], bandwidth: Bandwidth) -> None:
        """`rows`: for each contender one with one token and one with more, of the same prompts.

        `weight_bytes`: size of the file that `readers` run.
        """
        self._weight_bytes, self._readers, self._bandwidth = weight_bytes, readers, bandwidth
        self._rows = [
            row
            for first in rows
            for more in rows
            if (first.name, first.at_once) == (more.name, more.at_once) and first.asked_tokens < more.asked_tokens
            for row in _phases(first, more)
        ]

    def table(self) -> str:
        head = (
            f"tokens/s, median and best of the quiet requests; weights {self._weight_bytes / 1e9:.2f} GB; {self._bandwidth};\n"
            "GB/s: the file's bytes times the steps a second, at the median; others: their share of the cores, at most\n"
            f"{'':30s} {'at once':>7s} {'prompt':>8s} {'best':>8s} {'decode':>8s} {'best':>8s}"
            f" {'GB/s':>6s} {'of read':>7s} {'of copy':>7s} {'others':>6s}"
        )
        return "\n".join([head, *map(self._line, sorted(self._rows, key=lambda row: row.at_once))])

    def figures(self) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "at_once": row.at_once,
                "prompt_tokens_per_s": row.prompt.speeds,
                "decode_tokens_per_s": row.decode.speeds,
                "gb_per_s": self._gb_per_s(row),
                "others": row.others,
            }
            for row in self._rows
        ]

    def _line(self, row: PhaseRow) -> str:
        line = (
            f"{row.name:30s} {row.at_once:7d} {row.prompt.median:8.1f} {row.prompt.best:8.1f}"
            f" {row.decode.median:8.1f} {row.decode.best:8.1f}"
        )
        speed = self._gb_per_s(row)
        if speed is None:
            return f"{line} {'-':>6s} {'-':>7s} {'-':>7s} {row.others:6.0%}"
        shares = f"{speed / self._bandwidth.read:7.0%} {speed / self._bandwidth.copy:7.0%}"
        return f"{line} {speed:6.1f} {shares} {row.others:6.0%}"

    def _gb_per_s(self, row: PhaseRow) -> float | None:
        """None for other weights. A step reads all weights once, for all sequences."""
        steps_per_s = row.decode.median / row.at_once
        return self._weight_bytes * steps_per_s / 1e9 if row.name in self._readers else None


def _phases(first: Row, more: Row) -> Iterator[PhaseRow]:
    """Yields nothing if all requests were disturbed too much."""
    turns = zip(first.seconds, more.seconds, map(max, first.others, more.others), strict=True)
    measured = sorted((turn for turn in turns if turn[0] < turn[1]), key=lambda turn: turn[2])
    quiet = [turn for turn in measured if turn[2] < QUIET] or measured[:1]
    if quiet:
        new_tokens = (more.asked_tokens - first.asked_tokens) * first.at_once
        yield PhaseRow(
            first.name,
            first.at_once,
            Phase([first.prompt_tokens / prompt_s for prompt_s, _, _ in quiet]),
            Phase([new_tokens / (all_s - prompt_s) for prompt_s, all_s, _ in quiet]),
            quiet[-1][2],
        )
