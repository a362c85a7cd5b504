"""Sequences of hypotheses on a model server: they begin alike, so they share the blocks of what they have in common."""

from bisect import bisect_left
from collections.abc import Sequence

from coordinator.remote.sequence import RemoteSequence

Tokens = tuple[int, ...]


class Branch:
    """A hypothesis's sequence, and the tokens behind the prompt that it was fed."""

    def __init__(self, sequence: RemoteSequence, tokens: Tokens, num_prompt_tokens: int) -> None:
        self.sequence = sequence
        self.tokens = tokens
        self._num_prompt_tokens = num_prompt_tokens

    def common(self, tokens: Tokens) -> int:
        """How many tokens of prompt and `tokens` its cache holds."""
        return min(self.sequence.length, self._num_prompt_tokens + common_length(self.tokens, tokens))


class Branches:
    """All branches of one search on one server."""

    def __init__(self, root: RemoteSequence, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._branches = [Branch(root, (), num_prompt_tokens)]

    def take(self, paths: Sequence[Tokens]) -> list[RemoteSequence]:
        """A sequence for each path, of tokens behind the prompt; it holds a part of prompt and path, and nothing else.

        A path goes on in the branch with which it has most in common. Of several for one branch the one with most in
        common keeps it; the others become forks of it. Branches that none goes on in are released.
        """
        chosen: dict[Branch, list[int]] = {branch: [] for branch in self._branches}
        common = []
        for index, path in enumerate(paths):
            branch = max(self._branches, key=lambda each: each.common(path))
            chosen[branch].append(index)
            common.append(branch.common(path))
        taken: dict[int, Branch] = {}
        for branch, indices in chosen.items():
            if not indices:
                branch.sequence.release()
                continue
            keeper = max(indices, key=common.__getitem__)
            # Before the keeper cuts what it does not need.
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
    """How many tokens both begin with."""
    most = min(len(one), len(other))
    return bisect_left(range(1, most + 1), True, key=lambda length: one[:length] != other[:length])
