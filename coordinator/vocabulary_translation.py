"""Draft models with another tokenizer than the target's.

    Vocabularies   finds what each draft model's tokenizer has in common with the target's
    Translation    turns the target's tokens into those of one draft model
    DraftContext   a generation's context as the draft model reads it

A token that both have stays one; another is spelled with the draft model's tokens. So each of the target's tokens has its own
tokens in the draft model's context, whatever comes after it: no token that is decided ever changes there, and characters may be
split between tokens.

    target         ␣spec  ulative  ␣dec  oding         context [num_tokens]
    draft model    ␣spec  ul  ative  ␣dec  oding       its cache holds a prefix of this
    offsets        0      1          3     4       5   [num_tokens + 1]
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import tokenizers

from coordinator.tokenizer import TokenBytes, Tokenizer
from paceline.errors import ConfigError
from paceline.vocabulary import SharedVocabulary

log = logging.getLogger(__name__)
# A token's bytes, and whether it is a special token.
Written = tuple[bytes, bool]
# Reads the draft model's tokenizer files.
ReadFiles = Callable[[], Awaitable[dict[str, bytes]]]


class Translation:
    def __init__(
        self, shared: SharedVocabulary, written: Callable[[int], Written], draft_ids: dict[Written, int],
        begins: tuple[list[int], list[int]],
    ) -> None:  # fmt: skip
        """written: of the target's tokens.
        draft_ids: of all that the draft model's tokens write.
        begins: the special tokens with which texts begin, in the target and in the draft model.
        """
        self.shared = shared
        self.begins = begins
        self._written, self._draft_ids = written, draft_ids
        self._most_bytes = max(len(data) for data, _ in draft_ids)
        # By token of the target.
        self._pieces: dict[int, list[int]] = {
            token: [piece]
            for token, piece in zip(shared.target_token_ids.tolist(), shared.draft_token_ids.tolist(), strict=True)
        }

    def pieces(self, token: int) -> list[int]:
        """Returns the draft model's tokens for one of the target's: the longest that fit, from left to right."""
        if token not in self._pieces:
            self._pieces[token] = self._spell(self._written(token)[0])
        return self._pieces[token]

    def _spell(self, data: bytes) -> list[int]:
        """A special token that the draft model lacks is spelled as text. Leaves bytes out that no token has."""
        pieces: list[int] = []
        begin = 0
        while begin < len(data):
            longest = min(len(data), begin + self._most_bytes)
            ends = (end for end in range(longest, begin, -1) if (data[begin:end], False) in self._draft_ids)
            end = next(ends, 0)
            if end:
                pieces.append(self._draft_ids[data[begin:end], False])
            begin = end or begin + 1
        return pieces


class DraftContext:
    def __init__(self, translation: Translation, prompt: list[int]) -> None:
        self._translation = translation
        target_begin, draft_begin = translation.begins
        is_begun = prompt[: len(target_begin)] == target_begin
        self.tokens = list(draft_begin) if is_begun else []
        # Of each token of the target, and after the last one.
        self._offsets = [len(self.tokens)] * (1 + len(target_begin) * is_begun)
        self.extend(prompt)

    def extend(self, context: Sequence[int]) -> None:
        """Adds what is new in the target's context."""
        for token in context[len(self._offsets) - 1 :]:
            self.tokens += self._translation.pieces(token)
            self._offsets.append(len(self.tokens))

    def offset(self, length: int) -> int:
        """Returns the number of tokens for the first `length` tokens of the target, at most all that were added."""
        return self._offsets[min(length, len(self._offsets) - 1)]

    def after(self, undecided: Sequence[int]) -> list[int]:
        """Returns the draft model's tokens for tokens of the target that may follow."""
        return [piece for token in undecided for piece in self._translation.pieces(token)]


class Vocabularies:
    def __init__(self, target: Tokenizer, vocab_size: int) -> None:
        """`vocab_size`: the number of the target's ids."""
        self._target, self._vocab_size = target, vocab_size
        # By the draft model's tokenizer: its fingerprint, and how many ids the model has. Or why there is none.
        self._known: dict[tuple[str, int], Translation | str] = {}
        self._making = asyncio.Lock()

    async def translation(self, name: str, fingerprint: str, vocab_size: int, read: ReadFiles) -> Translation:
        """Returns the only translation into a draft model's tokens.

        Raises ConfigError if it has none of the target's tokens, or if what a tokenizer's tokens write is not known.
        """
        key = fingerprint, vocab_size
        if key not in self._known:
            files = await read()
            async with self._making:
                if key not in self._known:
                    self._known[key] = await asyncio.to_thread(self._make, vocab_size, files["tokenizer.json"])
        known = self._known[key]
        if isinstance(known, str):
            raise ConfigError(f"draft model {name!r} has another tokenizer than the target, and {known}")
        num_shared = len(known.shared)
        log.info(
            "draft model %s shares %s of %s tokens with the target", name, f"{num_shared:,}", f"{self._vocab_size:,}"
        )
        return known

    def _make(self, vocab_size: int, tokenizer_json: bytes) -> Translation | str:
        """Returns the translation, or why there is none."""
        try:
            draft = tokenizers.Tokenizer.from_str(tokenizer_json.decode())
        except Exception as error:  # tokenizers raises bare Exception
            return f"it can't be read: {error}"
        of_draft, of_target = TokenBytes(draft), self._target.token_bytes
        for whose, tokens in (("the draft model", of_draft), ("the target", of_target)):
            if tokens.unknown_step:
                return f"what the tokens of {whose} write is not known: the decoder has a step {tokens.unknown_step!r}"
        theirs, ours = _ids(of_draft, vocab_size), _ids(of_target, self._vocab_size)
        both = [(theirs[written], token) for written, token in ours.items() if written in theirs]
        if not both:
            return "they have no token in common"
        draft_ids, target_ids = np.array(both, dtype=np.int64).T
        shared = SharedVocabulary(self._vocab_size, draft_ids, target_ids)
        begins = self._target.encode("")[:1], [token for token in draft.encode("").ids[:1] if token < vocab_size]
        return Translation(shared, of_target.written, theirs, begins)


def _ids(tokens: TokenBytes, vocab_size: int) -> dict[Written, int]:
    """Returns for all that a tokenizer's tokens write the first token, if possible one that is no byte's name."""
    ordered = sorted(range(vocab_size), key=lambda token: (tokens.is_byte(token), token), reverse=True)
    return {written: token for token in ordered if (written := tokens.written(token))[0]}
