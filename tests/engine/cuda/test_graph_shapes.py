"""A few shapes hold all rounds."""

import pytest

from paceline.engine.batch import Batch, BatchBuilder
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.graphs.shapes import MULTI_STEP_ROWS, MULTI_STEPS, GraphShapes

CAPTURES = GraphShapes(num_rows=64, num_tokens=8192, num_ahead=7)


def batch_of(*spans: tuple[int, int]) -> Batch:
    """Sequences of so many rows, each at a position."""
    builder = BatchBuilder()
    for num_rows, position in spans:
        builder.add([0] * num_rows, position, [], [True] * num_rows)
    return builder.build(builder.num_rows)


@pytest.mark.parametrize("num_sequences", [1, 3, 8, 12])
@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("position", [0, 250, 5000, 8180])
def test_every_round_has_a_graph_that_holds_it(num_sequences: int, num_rows: int, position: int) -> None:
    batch = batch_of(*[(num_rows, position)] * num_sequences)
    for wanted in range(10):
        num_ahead = CAPTURES.multi_steps(wanted)
        assert num_ahead <= wanted
        found = CAPTURES.rounded(batch, False, num_ahead)
        assert found is not None
        assert found in set(CAPTURES.shapes())
        exact = ForwardShape.of(batch, False, num_ahead)
        assert (found[0].num_rows, found[0].num_parts) >= (exact.num_rows, exact.num_parts)
        assert found[0].num_tiles >= exact.num_tiles
        assert found[1] == (num_ahead if found[0].num_rows <= MULTI_STEP_ROWS else 0)


def test_chunks_and_long_contexts_have_none() -> None:
    assert CAPTURES.rounded(batch_of((100, 0)), False, 0) is None
    assert CAPTURES.rounded(batch_of((1, 0), (20, 0)), False, 0) is None
    assert CAPTURES.rounded(batch_of((1, 100_000)), False, 0) is None


def test_the_largest_come_first_and_there_are_not_too_many() -> None:
    shapes = list(CAPTURES.shapes())
    assert shapes[0][0].num_rows == 64
    assert len(shapes) == len(set(shapes)) < 500
    assert len(list(GraphShapes(64, 8192, 0).shapes())) < 80


def test_steps_ahead_are_as_many_as_there_are_graphs_for() -> None:
    assert [CAPTURES.multi_steps(wanted) for wanted in (0, 4, 6, 20)] == [0, 4, 5, 7]
    assert GraphShapes(8, 256, 2).multi_steps(5) == 2
    assert max(MULTI_STEPS) == 7
