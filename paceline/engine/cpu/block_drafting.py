"""A target that drafts a block of tokens in one forward pass of its head (see `models.draft_heads.dflash`).

The context's keys and values are further layers of the target's blocks, and each position's depend on the tokens up to it alone: all
that holds of `head_drafting` holds here. The rows of a block have theirs in the places behind the context, where the next context
is written over them: nothing counts as read that the head has not read of the target's states.
"""

import time
from collections.abc import Sequence

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.cache.sequence import Sequence as CacheSequence
from paceline.engine.cpu.dflash import CpuDFlash
from paceline.engine.cpu.head_drafting import MAX_ROWS, HeadDrafting, measured_drafts
from paceline.engine.cpu.head_sampler import SAMPLED_BYTES, parts
from paceline.engine.sampling.specs import ConfidentSample
from paceline.engine.scheduling.job import NextDrafts


class BlockDrafting(HeadDrafting):
    _head: CpuDFlash

    def _draft_behind(self, drafting: Sequence[tuple[NextDrafts, CacheSequence]]) -> None:
        if not drafting:
            return
        context, blocks = list[TokenSpan](), list[TokenSpan]()
        for wanted, sequence in drafting:
            end = wanted.position - 1
            while (first := sequence.num_head_read) < end - MAX_ROWS:
                self._run([TokenSpan(0, MAX_ROWS, first, sequence.blocks)], [], [])
                sequence.num_head_read += MAX_ROWS
            context.append(_behind(context, end - first, first, sequence.blocks))
            sequence.num_head_read = end
        for wanted, sequence in drafting:
            # As many masks as drafts are asked for: fewer rows than the head was trained with cost less.
            num_rows = 1 + min(wanted.num_asked, self._head.config.block_size - 1)
            blocks.append(_behind(blocks or context, num_rows, wanted.position - 1, sequence.blocks))
        asked = [wanted for wanted, _ in drafting]
        self._sample(self._run(context, blocks, [wanted.newest for wanted in asked]), blocks, asked)

    def _run(self, context: list[TokenSpan], blocks: list[TokenSpan], newest: Sequence[int]) -> Array:
        """Returns the outputs of the blocks' masks: [num_masks, hidden_size]. newest: each block's first token."""
        tokens = [
            token
            for first, span in zip(newest, blocks, strict=True)
            for token in (first, *[self._head.config.mask_token_id] * (span.num_tokens - 1))
        ]
        plan = self._attention.plan(blocks, context, sees_ahead=True)
        outputs = self._head.forward(np.array(tokens, np.int64), self._kept(context), self._attention, plan)
        starts = np.cumsum([0, *(span.num_tokens for span in blocks)])[:-1]
        return np.delete(outputs, starts, 0)

    def _sample(self, outputs: Array, blocks: list[TokenSpan], asked: Sequence[NextDrafts]) -> None:
        """Adds drafts to each, up to the one that makes it less sure than asked for. outputs: [num_masks, hidden_size]."""
        rows = [
            (number, wanted.position + place)
            for number, (wanted, span) in enumerate(zip(asked, blocks, strict=True))
            for place in range(span.num_tokens - 1)
        ]
        goes_on = [True] * len(asked)
        for few in parts(len(rows), SAMPLED_BYTES // (4 * self._model.config.vocab_size)):
            logits, of_part = self._head.logits(outputs[few]), rows[few]
            # Under a grammar a draft depends on those before it.
            is_guided = any(asked[number].may_follow is not None for number, _ in of_part)
            for some in parts(len(of_part), 1 if is_guided else len(of_part)):
                if not any(goes_on[number] for number, _ in of_part[some]):
                    continue
                specs = [asked[number].spec(position) for number, position in of_part[some]]
                samples = self._sampler.sample(logits[some], specs)
                for (number, _), (sample, _) in zip(of_part[some], samples, strict=True):
                    assert isinstance(sample, ConfidentSample), "all specs want a confidence"
                    if goes_on[number]:
                        goes_on[number] = asked[number].add(sample.token, sample.confidence)

    def _measure(self, block: int, num_rows: int) -> float:
        """Returns a draft's share of the time of this many blocks."""
        size = min(self._head.config.block_size, self._block_size)
        blocks = [TokenSpan(number * size, size, 0, [block]) for number in range(num_rows)]
        drafts = measured_drafts(num_rows)
        started_s = time.perf_counter()
        self._sample(self._run([], blocks, [0] * num_rows), blocks, drafts)
        return (time.perf_counter() - started_s) / (size - 1)


def _behind(spans: list[TokenSpan], num_tokens: int, position: int, blocks: list[int]) -> TokenSpan:
    """Returns a span whose rows follow those of `spans`."""
    first = spans[-1].first_token + spans[-1].num_tokens if spans else 0
    return TokenSpan(first, num_tokens, position, blocks)
