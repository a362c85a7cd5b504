"""Beam search under a grammar, slowly: every token that may follow is a candidate, and every mask a new guide's."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from paceline.errors import InvalidArgument
from paceline.grammar import Grammar

Tokens = tuple[int, ...]
# Logits after each text: [num_texts, vocab_size].
LogitsOf = Callable[[list[Tokens]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Text:
    tokens: Tokens
    logprob: float


def allowed_ids(grammar: Grammar, tokens: Tokens) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(grammar.guide().mask(tokens).view(np.uint8), bitorder="little"))


def slow_search(
    logits_of: LogitsOf, grammar: Grammar, width: int, length_penalty: float, ending_ids: Collection[int], max_tokens: int
) -> list[int] | None:  # fmt: skip
    """Returns None if no text can be finished."""
    live, finished = [Text((), 0.0)], list[tuple[float, Text]]()
    for length in range(1, max_tokens + 1):
        candidates = []
        for text, row in zip(live, logits_of([each.tokens for each in live]), strict=True):
            ids = allowed_ids(grammar, text.tokens)
            for token, logprob in zip(ids.tolist(), log_softmax(row[ids]) if len(ids) else (), strict=True):
                total = float(np.float32(text.logprob) + np.float32(logprob))
                candidates.append(Text((*text.tokens, token), total))
        candidates.sort(key=lambda each: -each.logprob)
        going_on = [each for each in candidates if each.tokens[-1] not in ending_ids][:width]
        ends = [each for each in candidates[:width] if each.tokens[-1] in ending_ids]
        live = []
        for text in going_on:
            try:
                is_over = grammar.guide().is_over(text.tokens)
            except InvalidArgument:
                # The library allows a token here and then refuses it.
                continue
            (ends if is_over or length == max_tokens else live).append(text)
        finished += [(each.logprob / length**length_penalty, each) for each in ends]
        finished = sorted(finished, key=lambda pair: -pair[0])[:width]
        no_better = len(finished) == width and (not live or live[0].logprob / length**length_penalty <= finished[-1][0])
        if not live or no_better:
            break
    return list(finished[0][1].tokens) if finished else None
