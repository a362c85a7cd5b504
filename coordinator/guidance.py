"""What an output format decides without a forward pass: forced tokens, the end of the text, and which drafts are choices."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coordinator.acceptance import Proposal
from paceline.grammar import Grammar, Guide
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import MAX_DRAFT_TOKENS


class Guidance:
    """Leads one generation. Methods take its context's tokens."""

    def __init__(
        self, grammar: Grammar, sampling: SamplingParams, num_prompt_tokens: int, ending_ids: frozenset[int]
    ) -> None:
        """`ending_ids`: banned below `min_tokens`."""
        self._guide: Guide = grammar.guide()
        self._eos_token_ids = grammar.eos_token_ids
        self._sampling = sampling
        self._num_prompt_tokens = num_prompt_tokens
        self._ending_ids = ending_ids

    def is_over(self, tokens: Sequence[int]) -> bool:
        """Returns whether nothing may follow."""
        return self._guide.is_over(tokens[self._num_prompt_tokens :])

    def forced(self, tokens: Sequence[int]) -> int | None:
        """Returns the only token that may follow, unless another of the request's fields forbids it."""
        return self._forced(tokens[self._num_prompt_tokens :])

    def shape(self, tokens: Sequence[int], proposal: Proposal, room: int) -> Proposal:
        """Marks forced drafts, cuts the proposal at the first draft that may not follow, and appends forced tokens.

        Sampled drafts stay: dropping one for its value would bias the output. The target rejects what may not follow.
        `room`: the most drafts that the round can take.
        """
        if not proposal.tokens:
            return proposal
        completion, is_forced = list(tokens[self._num_prompt_tokens :]), list[bool]()
        for token in proposal.tokens:
            forced = self._forced(completion)
            may_follow = forced == token if forced is not None else self._guide.may_follow(completion, token)
            if not may_follow or token in self._eos_token_ids:
                break
            is_forced.append(forced is not None)
            completion.append(token)
        num_kept = len(is_forced)
        if proposal.supports and num_kept < len(proposal):
            return replace(proposal, is_forced=is_forced + [False] * (len(proposal) - num_kept))
        proposal = replace(proposal, tokens=proposal.tokens[:num_kept])
        more = self._forced_run(completion, min(MAX_DRAFT_TOKENS, room) - num_kept) if num_kept else []
        ids = [np.array([token], dtype=np.int64) for token in more] if proposal.supports else []
        return replace(
            proposal, tokens=[*proposal.tokens, *more], is_forced=[*is_forced, *[True] * len(more)],
            supports=[*proposal.supports, *ids],
            support_probs=[*proposal.support_probs, *[np.ones(1, np.float32)] * len(ids)],
        )  # fmt: skip

    def _forced_run(self, completion: list[int], most: int) -> list[int]:
        """Appends forced tokens to `completion`, and returns them."""
        run = list[int]()
        while len(run) < most and (token := self._forced(completion)) is not None:
            run.append(token)
            completion.append(token)
        return run

    def _forced(self, completion: Sequence[int]) -> int | None:
        token = self._guide.forced(completion)
        if token is None:
            return None
        sampling = self._sampling
        is_listed = not sampling.allowed_token_ids or token in sampling.allowed_token_ids
        is_early = token in self._ending_ids and len(completion) < sampling.min_tokens
        return token if is_listed and token not in sampling.banned_token_ids and not is_early else None
