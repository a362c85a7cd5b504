"""A sequence's cache: the tokens fed so far and the blocks that hold their keys and values."""

from dataclasses import dataclass

from paceline.engine.block_pool import BlockPool
from paceline.errors import OutOfRange
from paceline.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """What Open says of a sequence."""

    sampling: SamplingParams
    num_prompt_tokens: int
    eos_token_ids: tuple[int, ...]

    @property
    def seed(self) -> int:
        assert self.sampling.seed is not None, "Open is refused without a seed"
        return self.sampling.seed

    def banned_token_ids(self, position: int) -> tuple[int, ...]:
        """Tokens that may not stand at `position`: those that would end the text before min_tokens."""
        if position - self.num_prompt_tokens >= self.sampling.min_tokens:
            return ()
        return self.eos_token_ids + self.sampling.stop_token_ids


class Sequence:
    """Invariant: `len(blocks) * block_size >= length`, with equality's slack only while reserved."""

    def __init__(self, options: SequenceOptions, pool: BlockPool) -> None:
        self.options = options
        self._pool = pool
        # Exactly the tokens whose keys and values are in the cache.
        self.tokens: list[int] = []
        # The block table: tokens i * block_size … stand in blocks[i].
        self.blocks: list[int] = []

    @property
    def length(self) -> int:
        """Tokens in the cache: all there is to know about it."""
        return len(self.tokens)

    def reserve(self, length: int) -> None:
        """Takes the blocks for `length` tokens. Raises ResourceExhausted, and changes nothing."""
        missing = self._pool.blocks_for(length) - len(self.blocks)
        if missing > 0:
            self.blocks += self._pool.allocate(missing, after=self.blocks[-1] if self.blocks else None)

    def truncate(self, length: int) -> None:
        """Keeps exactly `length` tokens and returns whole blocks. Raises OutOfRange if there are fewer."""
        if length > self.length:
            raise OutOfRange(f"length is {length}, but the cache holds {self.length} tokens")
        del self.tokens[length:]
        keep = self._pool.blocks_for(length)
        self._pool.release(self.blocks[keep:])
        del self.blocks[keep:]
