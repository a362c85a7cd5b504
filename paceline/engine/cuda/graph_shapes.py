"""The shapes that have captured graphs: enough to need little padding, few enough to capture in seconds."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.engine.batch import Batch
from paceline.engine.cuda.forward_plan import ATTENTION_PART_TOKENS, SMALL_TILE_ROWS, ForwardShape

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)
# Numbers of parts in the longest sequence. A larger number only adds programs of attention that end at once.
PARTS = (2, 8, 32, 128, 512)
# Memory for each logit: its float32.
LOGIT_BYTES = 4
# Memory for each logit of one step: the head's own output, and the working memory of sampling.
SAMPLING_BYTES = 4
# Memory for each graph: its kernels and small arrays.
GRAPH_BYTES = 3 << 20
# Numbers of next steps, and of sequences in programs with next steps: with more, single steps cost little more.
MULTI_STEPS = (0, 1, 2, 3, 7)
SEQUENCES = (1, 2, 4, 8, 16, 32)
# Rows for each sequence in the first of several steps. A draft's tail has two tokens after a round that accepted all.
TAIL_ROWS = 2


@dataclass(frozen=True, slots=True)
class GraphShapes:
    """The largest captured shape.

    A program with next steps has one wanted row per sequence, and the rows of the sequences' tails.
    """

    num_rows: int
    num_tokens: int
    num_ahead: int

    def shapes(self) -> Iterator[tuple[ForwardShape, int]]:
        """Yields all shapes with their numbers of next steps, the largest first: the others reuse its memory."""
        parts = _up_to(PARTS, -(-self.num_tokens // ATTENTION_PART_TOKENS))[::-1]
        for num_rows in reversed(_up_to(ROWS, self.num_rows)):
            for num_parts in parts:
                yield _single_step(num_rows, num_parts), 0
        for num_sequences in reversed(self._sequences):
            for num_parts in parts:
                for num_ahead in reversed(MULTI_STEPS):
                    if 0 < num_ahead <= self.num_ahead:
                        yield _several_steps(num_sequences, num_parts), num_ahead

    def multi_steps(self, wanted: int) -> int:
        """Returns the largest captured number of next steps up to `wanted`."""
        return max(size for size in MULTI_STEPS if size <= min(wanted, self.num_ahead))

    def rounded(self, batch: Batch, batch_invariant: bool, num_ahead: int) -> tuple[ForwardShape, int] | None:
        """Returns the captured shape for a batch and its number of next steps; None if none is large enough."""
        exact = ForwardShape.of(batch, batch_invariant, num_ahead)
        num_parts = _fitting(exact.num_parts, _up_to(PARTS, -(-self.num_tokens // ATTENTION_PART_TOKENS)))
        if num_parts is None or exact.tile_rows != SMALL_TILE_ROWS:
            return None
        most = max(exact.num_rows, exact.num_tiles)
        if num_ahead > 0:
            num_sequences = _fitting(max(exact.num_wanted, -(-most // TAIL_ROWS)), self._sequences)
            if num_sequences is not None:
                return _several_steps(num_sequences, num_parts), num_ahead
        num_rows = _fitting(most, _up_to(ROWS, self.num_rows))
        return None if num_rows is None else (_single_step(num_rows, num_parts), 0)

    def most_logits(self) -> int:
        """Rows of logits in the largest shape, next steps included."""
        return max(shape.num_wanted * (1 + num_ahead) for shape, num_ahead in self.shapes())

    def most_rows(self) -> int:
        """Rows in the largest shape."""
        return max(shape.num_rows for shape, _ in self.shapes())

    @property
    def _sequences(self) -> list[int]:
        return [size for size in SEQUENCES if size <= self.num_rows]

    def bytes(self, vocab_size: int) -> int:
        """Estimates the memory of all graphs."""
        most_rows = max(shape.num_wanted for shape, _ in self.shapes())
        logits = LOGIT_BYTES * self.most_logits() + SAMPLING_BYTES * most_rows
        return vocab_size * logits + GRAPH_BYTES * len(list(self.shapes()))


def _single_step(num_rows: int, num_parts: int) -> ForwardShape:
    return ForwardShape(num_rows, num_rows, num_rows, num_parts)


def _several_steps(num_sequences: int, num_parts: int) -> ForwardShape:
    return ForwardShape(TAIL_ROWS * num_sequences, num_sequences, TAIL_ROWS * num_sequences, num_parts)


def _up_to(sizes: Seq[int], most: int) -> list[int]:
    below = [size for size in sizes if size < most]
    return [*below, next(size for size in sizes if size >= most)]


def _fitting(number: int, sizes: Seq[int]) -> int | None:
    return next((size for size in sizes if size >= number), None)
