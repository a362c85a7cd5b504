"""Beam hypotheses on a model server: a sequence each, sharing the prefix's blocks."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.remote.placement import Placement
from coordinator.remote.sequence import RemoteSequence
from paceline.checks import require
from paceline.rpc.model_messages import draft_mode_to_message, floats_from_bytes, rule_to_message
from paceline.speculation_params import DraftMode, Rule
from paceline.v1 import propose_pb2, verify_pb2

Tokens = tuple[int, ...]


class Branch:
    def __init__(self, sequence: RemoteSequence, tokens: Tokens, num_prompt_tokens: int) -> None:
        self.sequence = sequence
        self.tokens = tokens
        self._num_prompt_tokens = num_prompt_tokens

    def common(self, tokens: Tokens) -> int:
        """Returns the length of the cached prefix."""
        return min(self.sequence.length, self._num_prompt_tokens + common_length(self.tokens, tokens))


class Branches:
    def __init__(self, root: RemoteSequence, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._branches = [Branch(root, (), num_prompt_tokens)]

    def take(self, paths: Sequence[Tokens]) -> list[RemoteSequence]:
        """Returns a sequence for each path, which holds a prefix of prompt and path.

        A path continues the branch with the longest common prefix. If several do, the longest keeps the branch and the others
        fork it.
        """
        chosen: dict[Branch, list[int]] = {branch: [] for branch in self._branches}
        common = []
        for index, path in enumerate(paths):
            branch = max(self._branches, key=lambda each: each.common(path))
            chosen[branch].append(index)
            common.append(branch.common(path))
        taken: dict[int, Branch] = {}
        # First: the server may have no states for more sequences than paths.
        for branch in [each for each, indices in chosen.items() if not indices]:
            branch.sequence.release()
            del chosen[branch]
        for branch, indices in chosen.items():
            keeper = max(indices, key=common.__getitem__)
            # Fork before the keeper is truncated.
            for index in indices:
                sequence = branch.sequence if index == keeper else branch.sequence.fork(common[index])
                taken[index] = Branch(sequence, paths[index], self._num_prompt_tokens)
            branch.sequence.truncate(common[keeper])
        self._branches = [taken[index] for index in range(len(paths))]
        return [branch.sequence for branch in self._branches]

    def release(self) -> None:
        for branch in self._branches:
            branch.sequence.release()


def common_length(one: Tokens, other: Tokens) -> int:
    most = min(len(one), len(other))
    return bisect_left(range(1, most + 1), True, key=lambda length: one[:length] != other[:length])


@dataclass(frozen=True, slots=True)
class Scored:
    next_tokens: list[list[tuple[int, float]]]
    # Prefix tokens found in the server's cache.
    cached_tokens: int
    compute_us: int
    queued_us: int


async def score(
    placement: Placement,
    sequence: RemoteSequence,
    tokens: list[int],
    num_drafts: int,
    num_next: int,
    timeout_s: float,
) -> Scored:
    """Returns the top `num_next` tokens at the last `num_drafts` + 1 positions of `tokens`: fewer if fewer may follow.

    Leaves all of `tokens` in the cache. Raises Unavailable after the timeout.
    """
    context, drafts = tokens[: len(tokens) - num_drafts], tokens[len(tokens) - num_drafts :]
    # The newest token is fed again for its logits.
    sequence.truncate(len(context) - 1)

    def fill(verify: verify_pb2.Verify) -> None:
        verify.rule = rule_to_message(Rule.MATCH)
        verify.logprobs = num_next

    _, answer = await placement.retry(timeout_s, lambda: sequence.verify(context, drafts, fill))
    ids, count = list(answer.logprobs.top_token_ids), (num_drafts + 1) * num_next
    require(len(ids) == count, "logprobs.top_token_ids", f"{len(ids)} ids", f"{count} ids")
    pairs = list(zip(ids, floats_from_bytes(answer.logprobs.top, "logprobs.top", count).tolist(), strict=True))
    num_rows = answer.first_invalid_position if answer.HasField("first_invalid_position") else num_drafts + 1
    next_tokens = [
        [pair for pair in pairs[row * num_next : (row + 1) * num_next] if row < num_rows and pair[1] > -math.inf]
        for row in range(num_drafts + 1)
    ]
    return Scored(next_tokens, answer.cached_tokens, answer.compute_us, answer.queued_us)


async def guess(sequence: RemoteSequence, tokens: list[int], num_next: int) -> Scored:
    """Returns a draft model's top tokens at temperature 1. Raises PacelineError."""
    sequence.truncate(len(tokens) - 1)

    def fill(propose: propose_pb2.Propose) -> None:
        propose.num_draft_tokens = 1
        propose.draft_mode = draft_mode_to_message(DraftMode.SAMPLED)

    answer = await sequence.propose(tokens, fill)
    ids = list(answer.support_token_ids)
    probs = floats_from_bytes(answer.support_probs, "support_probs", len(ids)).tolist()
    likeliest = sorted(zip(probs, ids, strict=True), reverse=True)[:num_next]
    next_tokens = [(token, math.log(prob)) for prob, token in likeliest if prob > 0]
    require(bool(next_tokens), "support_token_ids", "empty", "at least one id")
    return Scored([next_tokens], answer.cached_tokens, answer.compute_us, answer.queued_us)
