"""How many tokens a hybrid proposes: a rule for each of its two drafters.

What one of them costs, and how often it is right, says nothing of the other.
"""

from coordinator.context import Context
from coordinator.draft_length import DraftLengthRule
from coordinator.round import Round


class HybridLength:
    """The loop asks for the most, for it does not know who will propose; the hybrid drafter asks again when it does."""

    def __init__(self, ngram: DraftLengthRule, model: DraftLengthRule, most: int) -> None:
        self._ngram = ngram
        self._model = model
        self._most = most
        self._asked = model

    def choose(self, context: Context) -> int:
        return self._most

    def for_ngram(self, context: Context) -> int:
        self._asked = self._ngram
        return self._ngram.choose(context)

    def for_model(self, context: Context) -> int:
        self._asked = self._model
        return self._model.choose(context)

    def learn(self, finished: Round) -> None:
        self._asked.learn(finished)
