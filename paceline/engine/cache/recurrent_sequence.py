"""Sequences of models with recurrent layers, whose state can't be truncated.

    tokens:  0 ............... base ............... length
             in the slot's state    in the slot's log

The log has the inputs of the state's updates. A step runs the updates of the log again, in the same order, and goes on with
its own tokens; so a rollback into the log leaves the bits of a sequence that never had the other tokens. Decided tokens move
from the log into the state. A rollback below it goes to the longest snapshot of fewer tokens, or to 0; the coordinator
replays what is missing.
"""

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cache.state_pool import SNAPSHOT_TOKENS, StateSpan
from paceline.speculation_params import MAX_DRAFT_TOKENS

# Tokens in a log: the accepted drafts of one round, and those of the next.
LOG_TOKENS = 2 * MAX_DRAFT_TOKENS


def open_sequence(options: SequenceOptions, pool: BlockPool) -> Sequence:
    """Returns an empty sequence, of the kind that the model needs."""
    return RecurrentSequence(options, pool) if pool.states.num_slots else Sequence(options, pool)


class RecurrentSequence(Sequence):
    """Invariants: base <= length <= base + LOG_TOKENS; a sequence has a slot if it has blocks."""

    def __init__(self, options: SequenceOptions, pool: BlockPool) -> None:
        super().__init__(options, pool)
        self._states = pool.states
        self._base = 0
        # Tokens at the last commit. A step moves them into the state, so a rollback below costs a replay.
        self._num_committed = 0
        # What a step is doing. If it fails, the state is no longer known.
        self._step: StateSpan | None = None

    @property
    def is_intact(self) -> bool:
        return self._step is None

    @property
    def lacks_state(self) -> bool:
        return self.slot is None and self._states.num_free == 0

    def match_prefix(self, tokens: list[int]) -> int:
        """Takes the cached blocks of the longest prefix that has a snapshot."""
        self._restore(super().match_prefix(tokens))
        return self.length

    def fork(self, parent: Sequence, length: int) -> None:
        """Copies the state as well. May take over fewer tokens, if the state at `length` is gone or there is no slot."""
        super().fork(parent, length)
        assert isinstance(parent, RecurrentSequence)
        if length == 0 or parent._base > length or not self._states.num_free:
            self._restore(length)
            return
        assert parent.slot is not None, "a sequence with tokens has a state"
        self.slot, self._base = self._states.allocate(), parent._base
        self._states.copy(parent.slot, self.slot)

    def commit(self, length: int) -> None:
        super().commit(length)
        self._num_committed = length

    def reserve(self, length: int) -> None:
        if self.slot is None:
            # Before blocks are taken.
            self._states.require_free()
        super().reserve(length)
        if self.slot is None:
            self.slot = self._states.allocate()

    def truncate(self, length: int) -> None:
        """Keeps at most `length` tokens: those of a snapshot if the state has more, or is not known after a failure."""
        self.require_holds(length)
        if length and length >= self._base and self.is_intact:
            super().truncate(length)
            return
        if self._step is not None and self._step.snapshot:
            self._states.release(self._step.snapshot_slot)
        self._step = None
        if self.slot is not None:
            self._states.release(self.slot)
        self._restore(length)

    def rollback(self, length: int) -> None:
        super().rollback(length)
        if length < self._base:
            assert length == 0, "only drafts are rolled back"
            self._base = 0

    def plan_state(self, num_tokens: int) -> StateSpan:
        """Says what the step that feeds `num_tokens` does with the state. The next call is `append` or `truncate`."""
        assert self.slot is not None, "a state is reserved before a step"
        end = self.length + num_tokens
        new_base = max(self._base, min(self._num_committed, self.length), end - LOG_TOKENS)
        snapshot = self._next_snapshot(end) if self._states.num_free else 0
        snapshot_slot = self._states.allocate() if snapshot else self.slot
        self._step = StateSpan(self.slot, self._base, new_base, snapshot, snapshot_slot)
        return self._step

    def append(self, tokens: list[int]) -> None:
        super().append(tokens)
        assert self._step is not None, "a step is planned before it runs"
        self._base = self._step.new_base
        if self._step.snapshot:
            *_, digest = self._digests_of(self.tokens[: self._step.snapshot])
            self._states.add(digest, self._step.snapshot_slot)
        self._step = None

    def _next_snapshot(self, end: int) -> int:
        """Returns the position up to `end`, of those not fed, to take a snapshot at; 0 if there is none.

        First the end of the prompt's last full block, so that the prompt is found again, else the last regular interval.
        """
        if not self._pool.caches_prefixes:
            return 0
        block_size = self._pool.block_size
        interval = self._pool.blocks_for(SNAPSHOT_TOKENS) * block_size
        # If the prompt is sent again, its last token is fed again, so no snapshot that includes it would be found.
        prompt = (self.options.num_prompt_tokens - 1) // block_size * block_size
        positions = (prompt, end // interval * interval)
        return next((position for position in positions if self.length < position <= end), 0)

    def _restore(self, length: int) -> None:
        """Keeps the tokens of the longest snapshot of at most `length` tokens, with its state. The sequence has no slot."""
        self.slot, self._base = None, 0
        for num_blocks in range(min(length // self._pool.block_size, len(self._digests)), 0, -1):
            self.slot = self._states.restore(self._digests[num_blocks - 1])
            if self.slot is not None:
                self._base = num_blocks * self._pool.block_size
                break
        super().truncate(self._base)
