"""Graph shapes: the shapes that have captured graphs.

There are enough shapes to need little padding, and few enough to capture all of them in seconds.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.engine.batch import Batch
from paceline.engine.cuda.forward_plan import FEW_ROWS, PART_TOKENS, ForwardShape

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
# Numbers of parts in the longest sequence. A larger number only adds programs of attention that end at once.
PARTS = (1, 4, 16, 64, 256)
# Memory for each logit: its float32.
LOGIT_BYTES = 4
# Memory for each logit of one step: the head's own output, and the working memory of sampling.
SAMPLING_BYTES = 4
# Memory for each graph: its kernels and small arrays.
GRAPH_BYTES = 3 << 20
# Numbers of next steps, and the most rows of programs with next steps: with more rows, single steps cost little more.
MULTI_STEPS = (0, 1, 2, 3, 4, 5, 7)
MULTI_STEP_ROWS = 32


@dataclass(frozen=True, slots=True)
class GraphShapes:
    """The largest captured shape: rows of a step, positions of a sequence, next steps."""

    num_rows: int
    num_tokens: int
    num_ahead: int

    def shapes(self) -> Iterator[tuple[ForwardShape, int]]:
        """All shapes with their numbers of next steps. The largest comes first, so that the others reuse its memory."""
        for num_rows in reversed(_up_to(ROWS, self.num_rows)):
            for num_parts in reversed(_up_to(PARTS, -(-self.num_tokens // PART_TOKENS))):
                for num_ahead in reversed(MULTI_STEPS):
                    if num_ahead == 0 or (num_ahead <= self.num_ahead and num_rows <= MULTI_STEP_ROWS):
                        yield ForwardShape(num_rows, num_rows, num_rows, num_parts), num_ahead

    def multi_steps(self, wanted: int) -> int:
        """The largest captured number of next steps that is not larger than `wanted`. Single steps do the rest."""
        return max(size for size in MULTI_STEPS if size <= min(wanted, self.num_ahead))

    def rounded(self, batch: Batch, batch_invariant: bool, num_ahead: int) -> tuple[ForwardShape, int] | None:
        """The captured shape for a batch, and its number of next steps; None if no shape is large enough."""
        exact = ForwardShape.of(batch, batch_invariant, num_ahead)
        num_rows = _fitting(max(exact.num_rows, exact.num_tiles), _up_to(ROWS, self.num_rows))
        num_parts = _fitting(exact.num_parts, _up_to(PARTS, -(-self.num_tokens // PART_TOKENS)))
        if num_rows is None or num_parts is None or exact.tile_rows != FEW_ROWS:
            return None
        return ForwardShape(num_rows, num_rows, num_rows, num_parts), num_ahead if num_rows <= MULTI_STEP_ROWS else 0

    def most_logits(self) -> int:
        """Rows of logits in the largest shape, including the next steps."""
        return max(shape.num_wanted * (1 + num_ahead) for shape, num_ahead in self.shapes())

    def bytes(self, vocab_size: int) -> int:
        """Bytes of all graphs: the shared logits, the working memory of sampling, and each graph's own memory."""
        most_rows = max(shape.num_wanted for shape, _ in self.shapes())
        logits = LOGIT_BYTES * self.most_logits() + SAMPLING_BYTES * most_rows
        return vocab_size * logits + GRAPH_BYTES * len(list(self.shapes()))


def _up_to(sizes: Seq[int], most: int) -> list[int]:
    """The increasing `sizes` below `most`, and the first size that is at least `most`."""
    below = [size for size in sizes if size < most]
    return [*below, next(size for size in sizes if size >= most)]


def _fitting(number: int, sizes: Seq[int]) -> int | None:
    """The smallest of the increasing `sizes` that is at least `number`; None if there is none."""
    return next((size for size in sizes if size >= number), None)
