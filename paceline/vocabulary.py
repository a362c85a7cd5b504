"""What two tokenizers have in common.

A draft model with another tokenizer than its target drafts only tokens that both have (token-level intersection: Timor et
al. 2502.05202, algorithm 4). Its distribution on these, by the target's ids, is the q of the acceptance rules.
"""

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.checks import require

# Far more than any tokenizer has: a row of logits has one number for each.
MAX_VOCAB_SIZE = 1 << 22


@dataclass(frozen=True, eq=False)
class SharedVocabulary:
    """Tokens of a target and a draft model. Raises InvalidArgument on construction."""

    # Number of the target's ids.
    target_vocab_size: int
    # The tokens' ids in both.
    draft_token_ids: NDArray[np.int64]  # [num_shared]
    target_token_ids: NDArray[np.int64]  # [num_shared]

    def __post_init__(self) -> None:
        size, num_shared = self.target_vocab_size, len(self)
        require(2 <= size <= MAX_VOCAB_SIZE, "target_vocab_size", size, f"in [2, {MAX_VOCAB_SIZE}]")
        require(num_shared > 0, "draft_token_ids", "empty", "at least one id")
        num_targets = len(self.target_token_ids)
        require(num_targets == num_shared, "target_token_ids", f"{num_targets} ids", f"{num_shared} ids")
        worst = int(self.target_token_ids.max())
        require(worst < size, "target_token_ids", worst, f"token ids in [0, {size})")
        for name in ("draft_token_ids", "target_token_ids"):
            require(len(np.unique(getattr(self, name))) == num_shared, name, "repeated ids", "all different")

    def __len__(self) -> int:
        return len(self.draft_token_ids)

    @property
    def in_target(self) -> Collection[int]:
        """Returns the target's ids of the tokens."""
        return self._draft_ids.keys()

    def to_target(self, tokens: Iterable[int]) -> list[int]:
        """Returns the target's ids of the draft model's tokens that both have."""
        return [self._target_ids[token] for token in tokens if token in self._target_ids]

    def to_draft(self, tokens: Iterable[int]) -> list[int]:
        """Returns the draft model's ids of the target's tokens that both have."""
        return [self._draft_ids[token] for token in tokens if token in self._draft_ids]

    @functools.cached_property
    def _target_ids(self) -> dict[int, int]:
        return _pairs(self.draft_token_ids, self.target_token_ids)

    @functools.cached_property
    def _draft_ids(self) -> dict[int, int]:
        return _pairs(self.target_token_ids, self.draft_token_ids)


def _pairs(keys: NDArray[Any], values: NDArray[Any]) -> dict[int, int]:
    return dict(zip(keys.tolist(), values.tolist(), strict=True))
