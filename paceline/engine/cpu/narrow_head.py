"""A draft's head that knows the first token ids, and for each row the tokens of its own context.

Reading the output matrix is much of a small model's step. A draft may be drawn from any part of the vocabulary and stays
exact, because q is what it was drawn from. Tokenizers number frequent tokens first (FR-Spec, 2502.14856, counts them), and
most rare tokens of a text repeat one of its prompt.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain, islice
from weakref import WeakKeyDictionary

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.kernels.scalars import tensor_of
from paceline.engine.cpu.linear import CpuLinear, QuantizedLinear
from paceline.engine.models.model_config import UNKNOWN_LOGIT
from paceline.engine.scheduling.job import Job

# The default number of first ids, in vocabularies of at least twice as many tokens.
DRAFT_VOCAB_SIZE = 32_768
# The number of tokens that a context adds at most.
MAX_CONTEXT_TOKENS = 2048
# With more rows than this, those that the step at hand does not need are dropped.
MAX_ROWS = 4 * MAX_CONTEXT_TOKENS


def draft_vocab_size(wanted: int | None, vocab_size: int) -> int:
    """The number of first ids that the head knows; 0 if it knows all. `wanted`: None for the default."""
    if wanted is None:
        wanted = DRAFT_VOCAB_SIZE if vocab_size >= 2 * DRAFT_VOCAB_SIZE else 0
    return wanted if wanted < vocab_size else 0


class ContextRows(ABC):
    """The output matrix's rows for tokens of contexts, in the order in which they came."""

    def __init__(self, vocab_size: int) -> None:
        self._num_rows = 0
        # The row of each token; -1: none.
        self.places = np.full(vocab_size, -1)
        # [num_rows, hidden_size] as a linear; None without rows.
        self.linear: CpuLinear | None = None

    def hold(self, ids: Array) -> None:
        """Adds the rows of those of the distinct tokens that have none, [num_ids]; drops the others if they are too many."""
        new = ids[self.places[ids] < 0]
        if not new.size:
            return
        if self._num_rows + new.size > MAX_ROWS:
            self.places[:] = -1
            self._num_rows, new = 0, ids
        places = np.arange(self._num_rows, self._num_rows + new.size)
        self.places[new] = places
        self._num_rows += new.size
        self.linear = self._with_rows(new, places)

    @abstractmethod
    def _with_rows(self, ids: Array, places: Array) -> CpuLinear:
        """The linear with the rows of these tokens after the first ones, which it has."""


class QuantizedRows(ContextRows):
    """Copies the blocks of a row as they are."""

    def __init__(self, source: QuantizedLinear, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self._source = source
        # Pages take memory once they are written to.
        self._rows = source.empty()

    def _with_rows(self, ids: Array, places: Array) -> CpuLinear:
        self._rows.copy_rows(self._source, ids, places)
        return self._rows.first(self._num_rows)


class MadeRows(ContextRows):
    """Makes a linear of all rows anew."""

    def __init__(self, weight: torch.Tensor, make: Callable[[torch.Tensor], CpuLinear]) -> None:
        super().__init__(weight.shape[0])
        self._weight, self._make = weight, make

    def _with_rows(self, ids: Array, places: Array) -> CpuLinear:
        of_places = np.empty(self._num_rows, np.int64)
        known = np.flatnonzero(self.places >= 0)
        of_places[self.places[known]] = known
        return self._make(self._weight[torch.from_numpy(of_places)])


class NarrowHead(Head):
    """Computes the logits of the first ids, and of the contexts' tokens."""

    def __init__(self, first: CpuLinear, num_first: int, rows: ContextRows, vocab_size: int) -> None:
        """`first`: the linear of the first ids."""
        super().__init__(first, None, vocab_size)
        self._num_first = num_first
        self._rows = rows
        self._ids_of: WeakKeyDictionary[Job, Array] = WeakKeyDictionary()
        # For each row of the next product the other tokens that it may draw.
        self._contexts: list[Array] = []

    def hold(self, jobs: Sequence[tuple[Job, int]]) -> None:
        """Prepares the next product. `jobs`: for each of its rows the job, and the job's pending row."""
        self._contexts = [self._context(job, row) for job, row in jobs]
        if self._contexts:
            self._rows.hold(np.unique(np.concatenate(self._contexts)))

    def __call__(self, x: Array) -> torch.Tensor:
        """x: [num_rows, hidden_size], normed -> [num_rows, num_first + num_context_rows] float32."""
        first = super().__call__(x)
        linear = self._rows.linear
        return first if linear is None else torch.cat([first, tensor_of(linear(x)).float()], dim=1)

    def to_full_vocab(self, known: torch.Tensor, first: int = 0) -> torch.Tensor:
        """known: the last product's rows from `first` on. A row has the tokens of its own context alone, whatever others
        have: so a seed gives the same drafts in any batch.
        """
        computed = known.numpy()
        logits = np.empty((len(computed), self._vocab_size), np.float32)
        logits[:, : self._num_first] = computed[:, : self._num_first]
        logits[:, self._num_first :] = UNKNOWN_LOGIT
        for row, ids in enumerate(self._contexts[first : first + len(computed)]):
            logits[row, ids] = computed[row, self._num_first + self._rows.places[ids]]
        return torch.from_numpy(logits)

    def _context(self, job: Job, row: int) -> Array:
        """The same for all drafts of a job: each of them is one of these tokens or of the first ids.

        Guesses that are neither can't be right, so what follows them does not count.
        """
        if job not in self._ids_of:
            options = job.sequence.options
            sampling = options.sampling
            lists = options.eos_token_ids, sampling.stop_token_ids, sampling.allowed_token_ids, sampling.logit_bias
            named = chain(*lists) if options.vocabulary is None else options.vocabulary.to_draft(chain(*lists))
            tokens = chain(named, job.sequence.tokens, job.pending[: row + 1])
            found = dict.fromkeys(token for token in tokens if self._num_first <= token < self._vocab_size)
            self._ids_of[job] = np.array(list(islice(found, MAX_CONTEXT_TOKENS)), np.int64)
        return self._ids_of[job]
