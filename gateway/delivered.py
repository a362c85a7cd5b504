"""What a client has of an answer, so that another coordinator can go on with it.

A seed's tokens do not depend on who drafts, on how many tokens, on the batch, or on the process. So the answer is asked for again,
and only what lies behind the delivered tokens is passed on. That they are the same tokens is checked.
"""

from dataclasses import dataclass, field, replace

from paceline.errors import Aborted
from paceline.results import Piece


@dataclass(slots=True)
class DeliveredChoice:
    """What a client has of one choice."""

    token_ids: list[int] = field(default_factory=list)
    is_finished: bool = False


class Delivered:
    """All choices of a request, by their index."""

    def __init__(self) -> None:
        self._choices: dict[int, DeliveredChoice] = {}

    def add(self, piece: Piece) -> None:
        choice = self._choices.setdefault(piece.index, DeliveredChoice())
        choice.token_ids += piece.token_ids
        choice.is_finished = piece.finish is not None

    @property
    def is_empty(self) -> bool:
        return not self._choices

    def as_it_stands(self) -> dict[int, DeliveredChoice]:
        """A copy, by the choices' index: what is delivered later is not in it."""
        return {index: replace(each, token_ids=list(each.token_ids)) for index, each in self._choices.items()}

    @property
    def prediction(self) -> list[int] | None:
        """What a repetition will begin with: drafts that are right. Of several unfinished choices the longest's tokens."""
        unfinished = [each.token_ids for each in self._choices.values() if not each.is_finished]
        return max(unfinished, key=len, default=None) or None


class Repetition:
    """A request's pieces once more, without what was delivered before."""

    def __init__(self, delivered: Delivered) -> None:
        # Before the repetition began. A choice of which nothing was delivered begins with it, and is never compared.
        self._before = delivered.as_it_stands()
        # Tokens of this repetition so far, by choice.
        self._num_tokens: dict[int, int] = {}

    def rest_of(self, piece: Piece) -> Piece | None:
        """The part of `piece` that the client lacks; None: it has all of it.

        Raises Aborted where the tokens are others than those delivered: then there is no going on.
        """
        choice = self._before.get(piece.index)
        if choice is None:
            return piece
        start = self._num_tokens.get(piece.index, 0)
        self._num_tokens[piece.index] = start + len(piece.token_ids)
        known = choice.token_ids[start:]
        num_known = min(len(known), len(piece.token_ids))
        if piece.token_ids[:num_known] != known[:num_known]:
            raise Aborted("the coordinator went away, and another one's answer begins with other tokens")
        if choice.is_finished or (num_known == len(piece.token_ids) and piece.finish is None):
            return None
        return _behind(piece, num_known)


def _behind(piece: Piece, num_tokens: int) -> Piece:
    """`piece` without its first tokens, and without what only an answer's first piece has. A round that is cut has no trace."""
    return replace(
        piece,
        text=piece.text[sum(piece.text_lengths[:num_tokens]) :],
        token_ids=piece.token_ids[num_tokens:],
        origins=piece.origins[num_tokens:],
        text_lengths=piece.text_lengths[num_tokens:],
        logprobs=piece.logprobs[num_tokens:],
        prompt_logprobs=[],
        trace=piece.trace if num_tokens == 0 else None,
    )
