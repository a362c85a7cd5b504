"""Rounds as the gateway passes them on."""

from collections.abc import AsyncGenerator

from gateway.generation import as_rounds
from paceline.results import Piece, TokenLogprobs


async def test_what_comes_ahead_of_a_round_is_a_part_of_it() -> None:
    """So a client has a long prompt's log-probabilities and the first token together, or, after a fault, neither."""
    scored = [TokenLogprobs(-float(i), [], []) for i in range(5)]

    async def pieces() -> AsyncGenerator[Piece, None]:
        yield Piece("", [], "", prompt_logprobs=scored[:2])
        yield Piece("", [], "", prompt_logprobs=scored[2:4])
        yield Piece("a", [7], "T", [1], prompt_logprobs=scored[4:])
        yield Piece("b", [8], "T", [1])
        yield Piece("", [], "")

    found = [piece async for piece in as_rounds(pieces(), scores_prompt=True)]
    assert found == [Piece("a", [7], "T", [1], prompt_logprobs=scored), Piece("b", [8], "T", [1]), Piece("", [], "")]


async def test_each_choice_begins_with_what_the_first_one_says_of_the_prompt() -> None:
    scored = [TokenLogprobs(-float(i), [], []) for i in range(3)]

    async def pieces() -> AsyncGenerator[Piece, None]:
        yield Piece("a", [1], "T", [1], index=1)
        yield Piece("", [], "", prompt_logprobs=scored[:2])
        yield Piece("b", [2], "T", [1], index=1)
        yield Piece("c", [3], "T", [1], prompt_logprobs=scored[2:])
        yield Piece("d", [4], "T", [1], index=2)
        yield Piece("e", [5], "T", [1], index=1)
        yield Piece("f", [6], "T", [1])

    found = [piece async for piece in as_rounds(pieces(), scores_prompt=True)]
    assert [(piece.text, piece.index) for piece in found] == [
        ("c", 0),
        ("a", 1),
        ("b", 1),
        ("d", 2),
        ("e", 1),
        ("f", 0),
    ]
    assert [piece.prompt_logprobs for piece in found] == [scored, scored, [], scored, [], []]
