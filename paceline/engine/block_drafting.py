"""A target that drafts a block of tokens in one forward pass of its head (see `models.draft_heads.dflash`).

The context's keys and values are further layers of the target's blocks, and each position's depend on the tokens up to it alone: all
that holds of `head_drafting` holds here. The rows of a block have theirs in the places behind the context, where the next context
is written over them: nothing counts as read that the head has not read of the target's states.
"""

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from paceline.engine.batch import TokenSpan
from paceline.engine.cache.sequence import Sequence as CacheSequence
from paceline.engine.head_drafting import MAX_ROWS, HeadDrafting, measured_drafts
from paceline.engine.models.draft_heads.dflash import DFlashConfig
from paceline.engine.sampling.specs import ConfidentSample
from paceline.engine.scheduling.job import NextDrafts


class BlockDrafting(HeadDrafting):
    """Drafts blocks for many sequences. A backend has the arrays."""

    @property
    @abstractmethod
    def _config(self) -> DFlashConfig: ...

    @abstractmethod
    def _run(self, context: list[TokenSpan], blocks: list[TokenSpan], tokens: list[int]) -> Any:
        """Runs the head. Returns the outputs of the blocks' masks: [num_masks, hidden_size].

        context: positions of which it reads what was kept; tokens: of the blocks' rows, which follow the context's.
        """

    @property
    def num_at_once(self) -> int:
        """Returns how many blocks have room in MAX_ROWS."""
        return max(1, MAX_ROWS // self._config.block_size)

    def _draft_behind(self, drafting: Sequence[tuple[NextDrafts, CacheSequence]]) -> None:
        for first in range(0, len(drafting), self.num_at_once):
            self._draft_together(drafting[first : first + self.num_at_once])

    def _draft_together(self, drafting: Sequence[tuple[NextDrafts, CacheSequence]]) -> None:
        context, blocks, tokens = list[TokenSpan](), list[TokenSpan](), list[int]()
        num_lacking = sum(wanted.position - 1 - sequence.num_head_read for wanted, sequence in drafting)
        most = MAX_ROWS if num_lacking <= MAX_ROWS else MAX_ROWS // len(drafting)
        for wanted, sequence in drafting:
            end = wanted.position - 1
            while end - (first := sequence.num_head_read) > most:
                num_rows = min(MAX_ROWS, end - first)
                self._run([TokenSpan(0, num_rows, first, sequence.blocks)], [], [])
                sequence.num_head_read += num_rows
            context.append(_behind(context, end - first, first, sequence.blocks))
            sequence.num_head_read = end
        for wanted, sequence in drafting:
            # As many masks as drafts are asked for: fewer rows than the head was trained with cost less.
            num_masks = min(wanted.num_asked, self._config.block_size - 1)
            blocks.append(_behind(blocks or context, 1 + num_masks, wanted.position - 1, sequence.blocks))
            tokens += [wanted.newest, *[self._config.mask_token_id] * num_masks]
        self._sample(self._run(context, blocks, tokens), blocks, [wanted for wanted, _ in drafting])

    def _sample(self, outputs: Any, blocks: list[TokenSpan], asked: Sequence[NextDrafts]) -> None:
        """Adds drafts to each, up to the one that makes it less sure than asked for. outputs: [num_masks, hidden_size]."""
        # Of each row of `outputs`: its block and its place there.
        rows = [(number, place) for number, span in enumerate(blocks) for place in range(span.num_tokens - 1)]
        indices = list(range(len(rows)))
        parts = [indices]
        if any(wanted.may_follow is not None for wanted in asked):
            # Under a grammar a draft depends on those before it.
            num_places = max(place for _, place in rows) + 1
            parts = [[index for index in indices if rows[index][1] == place] for place in range(num_places)]
        goes_on = [True] * len(asked)
        for part in parts:
            part = [index for index in part if goes_on[rows[index][0]]]
            specs = [
                asked[number].spec(asked[number].position + place) for number, place in map(rows.__getitem__, part)
            ]
            for index, sample in zip(part, self._samples(outputs[part], specs) if part else [], strict=True):
                assert isinstance(sample, ConfidentSample), "all specs want a confidence"
                number, _ = rows[index]
                if goes_on[number]:
                    goes_on[number] = asked[number].add(sample.token, sample.confidence)

    def _measure(self, block: int, num_rows: int) -> float:
        """Returns a draft's share of the time of this many blocks."""
        size = min(self._config.block_size, self._block_size)
        blocks = [TokenSpan(number * size, size, 0, [block]) for number in range(num_rows)]
        tokens, drafts = [0] * (num_rows * size), measured_drafts(num_rows)
        started_s = time.perf_counter()
        self._sample(self._run([], blocks, tokens), blocks, drafts)
        return (time.perf_counter() - started_s) / (size - 1)


def _behind(spans: list[TokenSpan], num_tokens: int, position: int, blocks: list[int]) -> TokenSpan:
    """Returns a span whose rows follow those of `spans`."""
    first = spans[-1].first_token + spans[-1].num_tokens if spans else 0
    return TokenSpan(first, num_tokens, position, blocks)
