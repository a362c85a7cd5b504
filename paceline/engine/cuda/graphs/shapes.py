"""For which shapes there are graphs: enough that little is padding, so few that capturing them takes seconds."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paceline.engine.batch import Batch
from paceline.engine.cuda.forward_plan import FEW_ROWS, PART_TOKENS, ForwardShape

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
# Stretches of positions: what a longer table costs is programs that find nothing to do.
PARTS = (1, 4, 16, 64, 256)
# For each logit: itself, in float32; as the head gives it, and what draws from it work in. For each graph: its own.
LOGIT_BYTES = 4
DRAW_BYTES = 4
GRAPH_BYTES = 3 << 20
# Steps ahead, and for how many rows: with more in a batch, steps one by one cost little more.
MULTI_STEPS = (0, 1, 2, 3, 4, 5, 7)
MULTI_STEP_ROWS = 32


@dataclass(frozen=True, slots=True)
class GraphShapes:
    """Limits: rows of a round, positions of a sequence, steps ahead."""

    num_rows: int
    num_tokens: int
    num_ahead: int

    def shapes(self) -> Iterator[tuple[ForwardShape, int]]:
        """With so many steps ahead; the largest first, so that the others find memory that it has let go."""
        for num_rows in reversed(_up_to(ROWS, self.num_rows)):
            for num_parts in reversed(_up_to(PARTS, -(-self.num_tokens // PART_TOKENS))):
                for num_ahead in reversed(MULTI_STEPS):
                    if num_ahead == 0 or (num_ahead <= self.num_ahead and num_rows <= MULTI_STEP_ROWS):
                        yield ForwardShape(num_rows, num_rows, num_rows, num_parts), num_ahead

    def multi_steps(self, wanted: int) -> int:
        """As many as there are graphs for, not more than wanted: those that are left follow one by one."""
        return max(size for size in MULTI_STEPS if size <= min(wanted, self.num_ahead))

    def rounded(self, batch: Batch, batch_invariant: bool, num_ahead: int) -> tuple[ForwardShape, int] | None:
        """The shape to run a batch in; None where there is no graph for it."""
        exact = ForwardShape.of(batch, batch_invariant, num_ahead)
        num_rows = _fitting(max(exact.num_rows, exact.num_tiles), _up_to(ROWS, self.num_rows))
        num_parts = _fitting(exact.num_parts, _up_to(PARTS, -(-self.num_tokens // PART_TOKENS)))
        if num_rows is None or num_parts is None or exact.tile_rows != FEW_ROWS:
            return None
        return ForwardShape(num_rows, num_rows, num_rows, num_parts), num_ahead if num_rows <= MULTI_STEP_ROWS else 0

    def most_logits(self) -> int:
        """Rows of logits in the largest of all shapes, steps ahead included."""
        return max(shape.num_wanted * (1 + num_ahead) for shape, num_ahead in self.shapes())

    def bytes(self, vocab_size: int) -> int:
        """Of all graphs: logits, shared by all; what draws work in; kernels and small arrays of each."""
        most_drawn = max(shape.num_wanted for shape, _ in self.shapes())
        logits = LOGIT_BYTES * self.most_logits() + DRAW_BYTES * most_drawn
        return vocab_size * logits + GRAPH_BYTES * len(list(self.shapes()))


def _up_to(sizes: Seq[int], most: int) -> list[int]:
    """Those below `most`, and the first that holds it."""
    below = [size for size in sizes if size < most]
    return [*below, next(size for size in sizes if size >= most)]


def _fitting(number: int, sizes: Seq[int]) -> int | None:
    """The least of the increasing `sizes` that holds `number`."""
    return next((size for size in sizes if size >= number), None)
