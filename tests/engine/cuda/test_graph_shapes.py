"""A few shapes hold all rounds."""

import itertools

import pytest

from paceline.engine.batch import Batch, BatchBuilder
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.graph_shapes import MULTI_STEPS, SEQUENCES, TAIL_ROWS, GraphShapes

CAPTURES = GraphShapes(num_rows=256, num_tokens=8192, num_ahead=7)


def batch_of(*spans: tuple[int, int], is_draft: bool = False) -> Batch:
    """Sequences of so many rows, each at a position. In a draft's batch only the last row of each matters."""
    builder = BatchBuilder()
    for num_rows, position in spans:
        builder.add([0] * num_rows, position, [], [not is_draft] * (num_rows - 1) + [True])
    return builder.build(builder.num_tokens)


@pytest.mark.parametrize(
    ("num_sequences", "num_rows"), [*itertools.product((1, 3, 8, 12, 32), (1, 2, 5, 8)), (1, 17), (8, 17), (12, 17)]
)
@pytest.mark.parametrize("position", [0, 250, 5000, 8180])
def test_every_round_has_a_graph_that_holds_it(num_sequences: int, num_rows: int, position: int) -> None:
    shapes = set(CAPTURES.shapes())
    for is_draft, wanted in itertools.product((True, False), range(10)):
        batch = batch_of(*[(num_rows, position)] * num_sequences, is_draft=is_draft)
        num_ahead = CAPTURES.multi_steps(wanted)
        assert num_ahead <= wanted
        found = CAPTURES.rounded(batch, False, num_ahead)
        assert found in shapes
        shape, exact = found[0], ForwardShape.of(batch, False, num_ahead)
        for size in ("num_rows", "num_wanted", "num_parts"):
            assert getattr(shape, size) >= getattr(exact, size), size
        # Each padding row has a tile of its own.
        assert shape.num_tiles >= exact.num_tiles + shape.num_rows - exact.num_rows
        assert found[1] in (0, num_ahead)


def test_drafts_run_in_one_go_whatever_the_last_round_accepted() -> None:
    """Sequences count, not rows: of some the tail is one token, of others two."""
    for num_sequences in range(1, SEQUENCES[-1] + 1):
        for num_tails_of_two in (0, 1, num_sequences):
            spans = [(2, 100)] * num_tails_of_two + [(1, 100)] * (num_sequences - num_tails_of_two)
            found = CAPTURES.rounded(batch_of(*spans, is_draft=True), False, 3)
            assert found is not None
            assert found[1] == 3
            assert num_sequences <= found[0].num_wanted < 2 * num_sequences
    many = batch_of(*[(1, 100)] * (SEQUENCES[-1] + 1), is_draft=True)
    assert CAPTURES.rounded(many, False, 3) == (ForwardShape(40, 40, 40, 2), 0)
    long_tails = batch_of(*[(TAIL_ROWS + 1, 100)] * SEQUENCES[-1], is_draft=True)
    assert CAPTURES.rounded(long_tails, False, 3) == (ForwardShape(96, 96, 96, 2), 0)


def test_chunks_and_long_contexts_have_none() -> None:
    assert CAPTURES.rounded(batch_of((100, 0)), False, 0) is None
    assert CAPTURES.rounded(batch_of(*[(5, 0)] * 60), False, 0) is None
    assert CAPTURES.rounded(batch_of((1, 0), (80, 0)), False, 0) is None
    assert CAPTURES.rounded(batch_of((1, 100_000)), False, 0) is None


def test_the_largest_come_first_and_there_are_not_too_many() -> None:
    shapes = list(CAPTURES.shapes())
    assert shapes[0][0].num_rows == max(shape.num_rows for shape, _ in shapes) == 256
    assert len(shapes) == len(set(shapes)) < 250
    assert len(list(GraphShapes(256, 8192, 0).shapes())) < 100


def test_steps_ahead_are_as_many_as_there_are_graphs_for() -> None:
    assert [CAPTURES.multi_steps(wanted) for wanted in (0, 4, 6, 20)] == [0, 3, 3, 7]
    assert GraphShapes(8, 256, 2).multi_steps(5) == 2
    assert max(MULTI_STEPS) == 7
