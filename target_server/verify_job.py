"""The job of a Verify command: one forward pass, and a sample at each of k + 1 positions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import (
    Argmax,
    ArgmaxWithLenience,
    ComplementSample,
    GumbelMax,
    LenientSample,
    Sample,
    SampleComplement,
    SampleSpec,
    Score,
)
from paceline.engine.scheduling.commands import Command, Start, Suggest
from paceline.engine.scheduling.job import Job, NextDrafts
from paceline.grammar import Mask, allows
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.speculation_params import Rule
from target_server.draft_masks import DraftMasks

_NO_SUPPORT: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class VerifySpec:
    """What to verify, and how."""

    drafts: list[int]
    # For rule `rejection`, one for each draft that was sampled, the last ones: the ids on which q is not zero.
    supports: list[NDArray[np.int64]]  # [support_size] each
    rule: Rule
    # Only for greedy requests: a draft is accepted if p(draft) >= lenience * max p.
    lenience: float = 1.0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    draft_next: "DraftNext | None" = None
    # Drafts of the draft head for the next round, and the joint confidence below which it stops.
    num_next_drafts: int = 0
    next_min_probability: float = 0.0
    # Rounds that the server goes on with by itself.
    num_more_rounds: int = 0
    # Whether the drafts are of a Suggest.
    are_suggested: bool = False


@dataclass(frozen=True, slots=True)
class DraftNext:
    """What follows at the draft model in the same process."""

    # Tokens of the context and the drafts that it has in its cache.
    cache_length: int
    # Keeps the first tokens of that cache, feeds the tail and drafts.
    propose: Callable[[int, list[int]], None]


@dataclass(frozen=True, slots=True)
class VerifyJobResult:
    # For rule `match` k + 1 tokens; for `rejection` one for each draft without a support, and the bonus token.
    tokens: list[int]
    # For `rejection`, one for each support: p on it, and a token sampled outside it.
    complements: list[ComplementSample]
    # With lenience, one for each draft.
    lenient_accepts: list[bool]
    # If asked for: one for each of the k + 1 positions, and one for each tail token from the second on.
    logprobs: list[RowLogprobs]
    prompt_logprobs: list[RowLogprobs]
    # The first position without any token to sample. It matters only if the text reaches it.
    first_invalid_position: int | None
    # What the draft head has drafted behind the newest token, if it was asked to.
    next_drafts: NextDrafts | None
    # Tail tokens that the cache already held.
    cached_tokens: int
    queued_us: int
    compute_us: int
    # Of the draft head.
    drafting_us: int
    # The drafts, if they are of a Suggest.
    suggested_tokens: list[int]


class VerifyJob(Job):
    """Samples after the last tail token and after each draft."""

    def __init__(self, sequence: Sequence, tail: list[int], spec: VerifySpec) -> None:
        super().__init__(sequence, tail + spec.drafts)
        self._verify_spec = spec
        self._num_drafts = len(spec.drafts)
        self._supports = [*spec.supports, _NO_SUPPORT]
        # Positions whose sample is the target's own draw.
        self._num_matched = len(spec.drafts) + (1 if spec.rule is Rule.MATCH else -len(spec.supports))
        # The position of the first draft, and the noise's round_start.
        self._round_start = sequence.length + len(tail)
        self._samples: list[Sample] = []
        self._row_logprobs: list[RowLogprobs] = []
        # The first position without any token to sample, and the last that the text may reach under the grammar.
        self._first_invalid_position: int | None = None
        self._last_reached = self._num_drafts
        sampling = sequence.options.sampling
        is_plain = spec.rule is Rule.MATCH and sampling.is_greedy and spec.lenience == 1 and self.is_alike_everywhere
        # The spec of all sampled rows, if it is the same: one object, which the runner looks at once.
        self._only_spec = Argmax(sampling, (), num_logprobs=spec.num_logprobs) if is_plain else None
        self._next_drafts: NextDrafts | None = None
        self._num_scored = 0 if spec.num_prompt_logprobs is None else len(tail) - 1

    def specs(self, num_tokens: int) -> list[SampleSpec | None]:
        first_sampled = len(self.pending) - (self._num_drafts + 1 - len(self._samples))
        num_before = min(first_sampled, num_tokens)
        scores = [self._score(row) for row in range(num_before)] if self._num_scored else [None] * num_before
        if self._only_spec is not None:
            return [*scores, *[self._only_spec] * (num_tokens - num_before)]
        first_index = len(self._samples) - first_sampled
        return [*scores, *[self._spec(first_index + row, row) for row in range(num_before, num_tokens)]]

    def absorb_logprobs(self, row_logprobs: list[RowLogprobs]) -> None:
        self._row_logprobs += row_logprobs

    def absorb(self, samples: list[Sample]) -> None:
        self._samples += [each for each in samples if each is not None]
        if self.is_done and self._verify_spec.num_next_drafts:
            self._next_drafts = self._plan_next()

    def on_finish(self) -> None:
        if (draft_next := self._verify_spec.draft_next) is None:
            return
        position, newest = self._newest()
        num_kept = min(draft_next.cache_length, position)
        draft_next.propose(num_kept, [*self.sequence.tokens[num_kept:position], newest])

    @property
    def next_drafts(self) -> NextDrafts | None:
        return self._next_drafts

    def _newest(self) -> tuple[int, int]:
        """Returns the position and the token that end the round: all before it is in the cache."""
        num_accepted = 0
        while num_accepted < self._num_drafts and self._samples[num_accepted] == self._verify_spec.drafts[num_accepted]:
            num_accepted += 1
        newest = self._samples[num_accepted]
        assert isinstance(newest, int), "only lenience and `rejection` sample otherwise"
        return self._round_start + num_accepted, newest

    def _plan_next(self) -> NextDrafts | None:
        """Returns None if the text is over, and where the grammar leaves a draft no choice."""
        position, newest = self._newest()
        options, spec = self.sequence.options, self._verify_spec
        if self._is_over(position, newest):
            return None
        masks = None
        if self.sequence.guide is not None:
            completion = [*self.sequence.tokens[options.num_prompt_tokens : position], newest]
            masks = DraftMasks(self, self.sequence.guide, completion, position + 1)
            if not masks.has_choice(spec.num_next_drafts):
                return None

        def draft_spec(at: int) -> SampleSpec:
            common = options.sampling, options.banned_token_ids(at)
            extra: Any = {"wants_confidence": True, "mask": None if masks is None else masks.mask}
            if options.sampling.is_greedy:
                return Argmax(*common, **extra)
            return GumbelMax(*common, match_key(options.seed, at), **extra)

        may_follow = None if masks is None else masks.may_follow
        return NextDrafts(spec.num_next_drafts, spec.next_min_probability, position + 1, newest, draft_spec, may_follow)

    def _is_over(self, position: int, newest: int) -> bool:
        options = self.sequence.options
        ends = {*options.eos_token_ids, *options.sampling.stop_token_ids}
        return not ends.isdisjoint((*self._verify_spec.drafts[: position - self._round_start], newest))

    def follow(self, start: Start, suggested: Suggest) -> Start | None:
        """Returns the next round, which the server runs without being asked.

        None under a grammar, if the text is over, and without room for it.
        """
        if self.sequence.guide is not None:
            return None
        position, newest = self._newest()
        if self._is_over(position, newest):
            return None
        spec, num_accepted = self._verify_spec, position - self._round_start
        num_more_rounds, are_suggested = spec.num_more_rounds - 1, False
        if spec.num_next_drafts:
            drafts = [] if self._next_drafts is None else self._next_drafts.tokens
        else:
            drafts = suggested.behind(self.sequence.tokens, position, newest)
            are_suggested = bool(drafts)
            if spec.are_suggested:
                # They were not thought of when the client counted how many rounds have room.
                num_more_rounds -= num_accepted
                if num_more_rounds < 0:
                    return None
        following = replace(spec, drafts=drafts, are_suggested=are_suggested, num_more_rounds=num_more_rounds)
        return start_of(start, position, [newest], following)

    @property
    def expects_peer_work(self) -> bool:
        """Whether there were drafts: such a sequence will ask the draft server for more."""
        return self._num_drafts > 0

    @property
    def result(self) -> VerifyJobResult:
        tokens: list[int] = []
        complements: list[ComplementSample] = []
        lenient_accepts: list[bool] = []
        for sample in self._samples:
            match sample:
                case int():
                    tokens.append(sample)
                case ComplementSample():
                    complements.append(sample)
                case LenientSample():
                    tokens.append(sample.token)
                    lenient_accepts.append(sample.accepts)
        return VerifyJobResult(
            tokens=[*tokens, *(each.token for each in complements[-1:])],
            complements=complements[:-1],
            lenient_accepts=lenient_accepts,
            logprobs=self._row_logprobs[self._num_scored :],
            prompt_logprobs=self._row_logprobs[: self._num_scored],
            first_invalid_position=self._first_invalid_position,
            cached_tokens=self.num_cached_tokens,
            queued_us=self.queued_us,
            compute_us=self.compute_us,
            drafting_us=self.drafting_us,
            next_drafts=self._next_drafts,
            suggested_tokens=self._verify_spec.drafts if self._verify_spec.are_suggested else [],
        )

    def _score(self, row: int) -> SampleSpec:
        num_logprobs = self._verify_spec.num_prompt_logprobs
        return Score(self.sequence.options.sampling, (), self.pending[row + 1], num_logprobs=num_logprobs)

    def _spec(self, index: int, row: int) -> SampleSpec:
        options, wanted = self.sequence.options, self._verify_spec
        position = self._round_start + index
        common = options.sampling, options.banned_token_ids(position)
        mask = self._mask_at(index, row, position)
        extra: Any = {"before": self.tokens_before(row), "num_logprobs": wanted.num_logprobs, "mask": mask}
        if index >= self._num_matched:
            purpose = Purpose.OUTSIDE if index < self._num_drafts else Purpose.BONUS
            key = make_key(options.seed, self._round_start, position, purpose)
            return SampleComplement(*common, self._supports[index - self._num_matched], uniform(key), **extra)
        if not options.sampling.is_greedy:
            return GumbelMax(*common, match_key(options.seed, position), **extra)
        if wanted.lenience < 1 and index < self._num_drafts:
            return ArgmaxWithLenience(*common, wanted.drafts[index], wanted.lenience, **extra)
        return Argmax(*common, **extra)

    def _mask_at(self, index: int, row: int, position: int) -> Mask | None:
        """Returns the tokens that may follow; None also behind a forbidden draft, where a sample is meaningless."""
        if self.sequence.guide is None or index > self._last_reached:
            return None
        mask, is_dead_end = self.mask(row, position)
        if is_dead_end:
            self._first_invalid_position = index
        if mask is None or (index < self._num_drafts and not allows(mask, self._verify_spec.drafts[index])):
            self._last_reached = index
        return mask


def start_of(command: Command, position: int, tail: list[int], spec: VerifySpec) -> Start:
    """Returns the start of a round's job at `position`."""
    return Start(
        command.command_id,
        command.sequence_id,
        position=position,
        tail=tail,
        # Drafts of the draft head take a place as well, for as long as it drafts, and so does the token before them.
        num_more=len(spec.drafts) + (spec.num_next_drafts + 1 if spec.num_next_drafts else 0),
        # The last tail token must be fed for its logits. To score the prompt, all must be fed.
        num_reusable=len(tail) - 1 if spec.num_prompt_logprobs is None else 0,
        make_job=lambda sequence, rest: VerifyJob(sequence, rest, spec),
        follow=VerifyJob.follow if spec.num_more_rounds else None,
    )
