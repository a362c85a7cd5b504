"""A sequence's tokens and blocks."""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.digests import block_digests, salt_of_head
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.state_pool import StateSpan
from paceline.errors import OutOfRange
from paceline.grammar import Grammar
from paceline.sampling_params import SamplingParams
from paceline.vocabulary import SharedVocabulary


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    sampling: SamplingParams
    num_prompt_tokens: int
    eos_token_ids: tuple[int, ...]
    # Only sequences with equal salts share cached prefixes.
    cache_salt: str = ""
    # For logs.
    request_id: str = ""
    # The trace that the sequence belongs to, or "".
    traceparent: str = ""
    # What the completion must look like.
    grammar: Grammar | None = None
    # Of a target with another tokenizer, whose ids the fields above have; the sequence's tokens are the model's own.
    vocabulary: SharedVocabulary | None = None
    # Whether the model's draft head reads the sequence.
    uses_draft_head: bool = False

    @property
    def prefix_salt(self) -> str:
        """Returns what is equal for sequences that may share blocks: a draft head reads only those that use it."""
        return salt_of_head(self.cache_salt) if self.uses_draft_head else self.cache_salt

    @property
    def seed(self) -> int:
        assert self.sampling.seed is not None, "Open is refused without a seed"
        return self.sampling.seed

    def banned_token_ids(self, position: int) -> tuple[int, ...]:
        """Returns the tokens that would end the text before min_tokens."""
        # Without min_tokens nothing is banned, even if num_prompt_tokens lies after the position.
        if self.sampling.min_tokens == 0 or position - self.num_prompt_tokens >= self.sampling.min_tokens:
            return ()
        return self.eos_token_ids + self.sampling.stop_token_ids


class Sequence:
    """Tokens and block table of a sequence. Invariant: `len(blocks) * block_size >= length`."""

    def __init__(self, options: SequenceOptions, pool: BlockPool) -> None:
        self.options = options
        self.guide = None if options.grammar is None else options.grammar.guide()
        self._pool = pool
        # Exactly the tokens in the cache.
        self.tokens: list[int] = []
        # The block table: blocks[i] begins at token i * block_size.
        self.blocks: list[int] = []
        # Digest i is of the context that ends with blocks[i] (see `prefix_index`). Only committed blocks have digests.
        self._digests: list[bytes] = []
        # The first tokens, as far as the model's draft head has read them.
        self.num_head_read = 0
        # Of the state pool; only if the model has recurrent layers.
        self.slot: int | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def is_intact(self) -> bool:
        """Whether a step that failed left the cache as it was."""
        return True

    @property
    def lacks_state(self) -> bool:
        """Whether the sequence needs a slot of the state pool, and none is free."""
        return False

    def match_prefix(self, tokens: list[int]) -> int:
        """Takes the cached blocks of a prefix of `tokens` into the empty sequence. Returns the prefix's length."""
        assert not self.blocks, "prefixes are matched before a sequence is fed"
        found: list[int] = []
        for digest in self._digests_of(tokens):
            block = self._pool.prefixes.find(digest)
            if block is None:
                break
            found.append(block)
            self._digests.append(digest)
        self._pool.ref(found)
        self.blocks = found
        self.tokens = tokens[: len(self.blocks) * self._pool.block_size]
        return self.length

    def fork(self, parent: "Sequence", length: int) -> None:
        """Shares the blocks of the parent's first `length` tokens; `reserve` copies a partly filled one before a write.

        Raises OutOfRange, and changes nothing, if the parent's cache holds fewer tokens.
        """
        assert not self.blocks, "a sequence is forked before it is fed"
        if length > parent.length:
            raise OutOfRange(f"length is {length}, but the parent's cache holds {parent.length} tokens")
        self.blocks = parent.blocks[: self._pool.blocks_for(length)]
        self._pool.ref(self.blocks)
        self.tokens = parent.tokens[:length]
        self.num_head_read = min(parent.num_head_read, length)
        if parent.guide is not None and parent.options.grammar is self.options.grammar:
            # Else its guide would take the whole completion again.
            self.guide = parent.guide.fork()
        self._digests = parent._digests[: length // self._pool.block_size]

    def commit(self, length: int) -> None:
        """Indexes the full blocks of the first `length` tokens, which must not be drafts."""
        num_known = len(self._digests)
        if not self._pool.caches_prefixes or length // self._pool.block_size <= num_known:
            return
        for digest in self._digests_of(self.tokens[:length]):
            self._pool.prefixes.add(digest, self.blocks[len(self._digests)])
            self._digests.append(digest)

    def missing_blocks(self, length: int) -> int:
        more = max(0, self._pool.blocks_for(length) - len(self.blocks))
        return more + (self._shared_index() is not None)

    def reserve(self, length: int) -> None:
        """Allocates blocks for `length` tokens. Raises ResourceExhausted, and changes nothing, if it can't."""
        taken = self._pool.allocate(self.missing_blocks(length))
        index = self._shared_index()
        if index is not None:
            # The block is shared or indexed, so write to a copy.
            copy = taken.pop(0)
            self._pool.copy_blocks([self.blocks[index]], [copy])
            self._pool.release([self.blocks[index]])
            self.blocks[index] = copy
        self.blocks += taken

    def plan_state(self, num_tokens: int) -> StateSpan | None:
        """Says what a step does with the sequence's state (see `recurrent_sequence`)."""
        return None

    def append(self, tokens: list[int]) -> None:
        """Adds tokens that a step has fed."""
        self.tokens += tokens

    def require_holds(self, length: int) -> None:
        if length > self.length:
            raise OutOfRange(f"length is {length}, but the cache holds {self.length} tokens")

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens and releases the other blocks. Raises OutOfRange if there are fewer."""
        self.require_holds(length)
        del self.tokens[length:]
        self.num_head_read = min(self.num_head_read, length)
        keep = self._pool.blocks_for(length)
        self._pool.release(self.blocks[keep:])
        del self.blocks[keep:]
        del self._digests[length // self._pool.block_size :]

    def rollback(self, length: int) -> None:
        """Drops the tokens from `length` on but keeps their blocks. Must not reach into a committed block."""
        assert len(self._digests) * self._pool.block_size <= length <= self.length, "only drafts are rolled back"
        del self.tokens[length:]
        self.num_head_read = min(self.num_head_read, length)

    def _shared_index(self) -> int | None:
        """Index of the next token's block if `reserve` must copy it; else None."""
        index = self.length // self._pool.block_size
        return index if index < len(self.blocks) and not self._pool.is_private(self.blocks[index]) else None

    def _digests_of(self, tokens: list[int]) -> Iterator[bytes]:
        return block_digests(self._digests, tokens, self.options.prefix_salt, self._pool.block_size)
