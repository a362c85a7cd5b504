"""What the target says of hypotheses: the likeliest next tokens behind each, from a branch for each."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from coordinator.beams.hypotheses import NextTokens, Tokens
from coordinator.beams.together import all_of
from coordinator.context import Request
from coordinator.remote.branches import Branches, Scored, score
from coordinator.remote.link import Link
from coordinator.remote.sequence import RemoteSequence


@dataclass(frozen=True, slots=True)
class Verified:
    """Next tokens by hypothesis, and what a round took: of the slowest command, for all share a batch."""

    next_tokens: dict[Tokens, NextTokens]
    # Tokens of the context that the target's cache held already.
    cached_tokens: int
    computed_us: int
    queued_us: int


class TargetBeams:
    """One search's branches on the target."""

    def __init__(self, link: Link, request: Request, patience_s: float) -> None:
        self._link = link
        self._prompt = request.prompt
        self._patience_s = patience_s
        self._branches = Branches(RemoteSequence(link, request), len(request.prompt))

    async def verify(
        self, paths: Sequence[Tokens], num_decided: int, wanted: Collection[Tokens], num_next: int
    ) -> Verified:
        """The `num_next` likeliest tokens behind each part of the `wanted` paths that has at least `num_decided` tokens.

        `paths`: all that keep a branch. Raises Unavailable if the target is gone for longer than the patience.
        """
        sequences = dict(zip(paths, self._branches.take(paths), strict=True))
        asked = [path for path in paths if path in wanted]
        scored: list[Scored] = await all_of(
            score(
                self._link, sequences[path], [*self._prompt, *path], len(path) - num_decided, num_next, self._patience_s
            )
            for path in asked
        )
        known: dict[Tokens, NextTokens] = {
            path[: num_decided + index]: next_tokens
            for path, of_path in zip(asked, scored, strict=True)
            for index, next_tokens in enumerate(of_path.next_tokens)
        }
        return Verified(
            known,
            cached_tokens=max(each.cached_tokens for each in scored),
            computed_us=max(each.computed_us for each in scored),
            queued_us=max(each.queued_us for each in scored),
        )

    def release(self) -> None:
        self._branches.release()
