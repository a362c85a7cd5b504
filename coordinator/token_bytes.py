"""The bytes that each token alone stands for, which may be a part of a character.

A byte-level vocabulary writes each byte as a printable character. Others write a token's text, with a sign of their own
for a space, and names such as <0x0A> for single bytes.
"""

import codecs
import json
import re
from itertools import accumulate
from typing import Any

import tokenizers

# A character has at most one byte more.
MAX_UNFINISHED_BYTES = 3
_BYTE_NAME = re.compile(r"<0x[0-9A-F]{2}>")


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte, as GPT-2 has it: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


class TokenBytes:
    """Of one tokenizer."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Special tokens and others that were added to the vocabulary: they are written as they are.
        self._added = {id: str(token).encode() for id, token in tokenizer.get_added_tokens_decoder().items()}
        self._special = frozenset(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        steps = _decoder_steps(tokenizer)
        kinds = {step["type"] for step in steps}
        # Without one, tokens are joined by spaces.
        self._has_decoder = bool(steps)
        self._alphabet = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._has_byte_names = "ByteFallback" in kinds
        self._replacements = [
            (step["pattern"]["String"], step["content"])
            for step in steps
            if step["type"] == "Replace" and "String" in step["pattern"]
        ]

    def of(self, token: int) -> bytes:
        """Empty for an id that the tokenizer does not know: a model's vocabulary may be filled up with such ids."""
        if token in self._added:
            return self._added[token]
        written = self._tokenizer.id_to_token(token)
        if written is None:
            return b""
        if self._alphabet is not None:
            return bytes(self._alphabet[character] for character in written)
        if self.is_byte(token):
            return bytes.fromhex(written[len("<0x") : -1])
        for pattern, content in self._replacements:
            written = written.replace(pattern, content)
        return str(written).encode()

    def offsets_of(self, ids: list[int], skip_special_tokens: bool) -> list[int]:
        """Returns how many characters the bytes before each token make, and at last those of all."""
        skipped = self._special if skip_special_tokens else frozenset()
        pieces = [b"" if token in skipped else self.of(token) for token in ids]
        if not self._has_decoder:
            words = [at for at, piece in enumerate(pieces) if piece]
            for at in words[1:]:
                pieces[at] = b" " + pieces[at]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        *offsets, end = accumulate((len(decoder.decode(piece)) for piece in pieces), initial=0)
        return [*offsets, end + len(decoder.decode(b"", final=True))]

    def unfinished(self, ids: list[int]) -> tuple[list[int], int]:
        """Returns the last tokens of `ids` if they hold the first bytes of a character, and how many characters precede
        those bytes in them. Special tokens are skipped."""
        kept: list[int] = []
        data = b""
        for token in reversed(ids):
            if len(data) >= MAX_UNFINISHED_BYTES:
                break
            if token not in self._special and (piece := self.of(token)):
                kept.insert(0, token)
                data = piece + data
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(data)
        num_unfinished = len(decoder.getstate()[0])
        if num_unfinished == 0:
            return [], 0
        while len(data) - (size := len(self.of(kept[0]))) >= num_unfinished:
            del kept[0]
            data = data[size:]
        return kept, len(data[:-num_unfinished].decode(errors="replace"))

    def has_text(self, token: int) -> bool:
        """Whether the token adds text by itself: it is not special, and not named for a byte."""
        return token not in self._special and not self.is_byte(token) and bool(self.of(token))

    def is_byte(self, token: int) -> bool:
        """Whether the token is named for a byte."""
        written = self._tokenizer.id_to_token(token)
        return self._has_byte_names and written is not None and _BYTE_NAME.fullmatch(written) is not None


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """What the tokenizer does with tokens to make them text."""
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]
