"""Drafters without a model, as distributions over the next token along a text (2211.17192, section 3.6).

`along(tokens, first)` gives q for the tokens at positions `first` to the end, each from the tokens before it:
[num_rows, vocab_size] float32. A lookup gives ids instead, -1 without a proposal.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

import torch

from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramTable

# What a unigram adds to every token's count, so that q > 0.
UNIGRAM_SMOOTHING = 0.01
# Weight of the unigram in a bigram's counts, in observations (a Dirichlet prior).
BIGRAM_PRIOR = 2.0
# A copy follows this many newest tokens at least, and looks at no more than the larger number.
SHORTEST_COPY, LONGEST_COPY = 2, 16


class Distribution(Protocol):
    def along(self, tokens: Sequence[int], first: int) -> torch.Tensor: ...


class LookUp(Protocol):
    """A drafter that proposes at most one id per position: [num_rows] int64."""

    def along(self, tokens: Sequence[int], first: int) -> torch.Tensor: ...


class Uniform:
    def __init__(self, vocab_size: int) -> None:
        self._q = torch.full((1, vocab_size), 1.0 / vocab_size)

    def along(self, tokens: Sequence[int], first: int) -> torch.Tensor:
        return self._q.expand(len(tokens) - first, -1)


class Unigram:
    """Draws tokens by their frequency in a corpus."""

    def __init__(self, corpus: Iterable[Sequence[int]], vocab_size: int) -> None:
        counts = torch.full((vocab_size,), UNIGRAM_SMOOTHING, dtype=torch.float64)
        for text in corpus:
            counts += torch.bincount(torch.tensor(text, dtype=torch.int64), minlength=vocab_size)
        self.q = (counts / counts.sum()).float().unsqueeze(0)  # [1, vocab_size]

    def along(self, tokens: Sequence[int], first: int) -> torch.Tensor:
        return self.q.expand(len(tokens) - first, -1)


class Bigram:
    """Draws continuations of the newest token by frequency in a corpus, smoothed by its unigram."""

    def __init__(self, corpus: Iterable[Sequence[int]], vocab_size: int) -> None:
        texts = list(corpus)
        self._unigram = Unigram(texts, vocab_size)
        self._following: dict[int, Counter[int]] = defaultdict(Counter)
        for text in texts:
            for token, following in pairwise(text):
                self._following[token][following] += 1

    def along(self, tokens: Sequence[int], first: int) -> torch.Tensor:
        q = self._unigram.along(tokens, first).clone()
        for row, token in enumerate(tokens[first - 1 : -1]):
            seen = self._following.get(token)
            if seen is None:
                continue
            total = seen.total()
            q[row] *= BIGRAM_PRIOR / (total + BIGRAM_PRIOR)
            q[row, list(seen)] += torch.tensor([count / (total + BIGRAM_PRIOR) for count in seen.values()])
        return q


class Ngrams:
    """The coordinator's n-gram table over the text so far."""

    def along(self, tokens: Sequence[int], first: int) -> torch.Tensor:
        table, proposed = NgramTable(DEFAULT_SHAPE), []
        for position, token in enumerate(tokens):
            if position >= first:
                found = table.predict(tokens[max(0, position - DEFAULT_SHAPE.longest_match) : position])
                proposed.append(-1 if found is None else found.token)
            table.add(token)
        return torch.tensor(proposed)


class Copy:
    """Copies the continuation of the longest match of the newest tokens; the latest if several are longest."""

    def along(self, tokens: Sequence[int], first: int) -> torch.Tensor:
        # The positions after each two tokens.
        places: dict[tuple[int, ...], list[int]] = defaultdict(list)
        proposed = []
        for position in range(len(tokens)):
            newest = tuple(tokens[position - SHORTEST_COPY : position]) if position >= SHORTEST_COPY else ()
            if position >= first:
                proposed.append(self._next(tokens, position, places.get(newest, [])))
            if newest:
                places[newest].append(position)
        return torch.tensor(proposed)

    def _next(self, tokens: Sequence[int], position: int, places: list[int]) -> int:
        best, longest = -1, 0
        for place in reversed(places):
            agreement = _agreement(tokens, place, position)
            if agreement > longest:
                best, longest = tokens[place], agreement
        return best


def _agreement(tokens: Sequence[int], place: int, position: int) -> int:
    """Returns how many tokens before both positions are equal."""
    length = 0
    while length < LONGEST_COPY and length < place and tokens[place - 1 - length] == tokens[position - 1 - length]:
        length += 1
    return length
