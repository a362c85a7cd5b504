"""Rounds as the gateway passes them on."""

from collections.abc import AsyncGenerator

from gateway.rounds import as_rounds
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

    found = [piece async for piece in as_rounds(pieces())]
    assert found == [Piece("a", [7], "T", [1], prompt_logprobs=scored), Piece("b", [8], "T", [1]), Piece("", [], "")]
