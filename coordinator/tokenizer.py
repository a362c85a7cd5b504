import asyncio
import codecs
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from coordinator.chat_template import NEXT_TURN, ChatTemplate, Ending
from coordinator.control_tokens import encode_text
from coordinator.reasoning_marks import ReasoningMarks
from coordinator.stop_strings import NOTHING, StopStrings
from coordinator.turns import EarliestDeadlineFirst
from paceline.errors import ConfigError

T = TypeVar("T")

# Prompt tokens given to the decoder as context.
CONTEXT_TOKENS = 8
# The replacement for invalid UTF-8.
BROKEN = "\ufffd"
# Tokens held back for an incomplete character; each new token decodes all of them.
MAX_PENDING_TOKENS = 8
# More characters take longer than a few milliseconds to tokenize. A text or a message costs as much as so many more.
LONG_CHARACTERS = 10_000
TEXT_CHARACTERS = 256
# How long a text lets newer ones go first, by its number of characters: about ten times as long as it takes itself.
PATIENCE_S = 2e-6


class Tokenizer:
    """The target's tokenizer. Does not import torch."""

    def __init__(self, files: dict[str, bytes]) -> None:
        """Raises ConfigError. `files`: name -> content."""
        with tempfile.TemporaryDirectory() as folder:
            for name, data in files.items():
                (Path(folder) / Path(name).name).write_bytes(data)
            try:
                self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
            except Exception as error:  # tokenizers raises bare Exception
                raise ConfigError(f"the target's tokenizer can't be read: {error}") from error
        self.backend = self._tokenizer.backend_tokenizer
        # The first call removes truncation and padding, which is not thread-safe.
        self._tokenizer.encode("")
        self._chat_template = ChatTemplate(self._tokenizer)
        self.token_bytes = TokenBytes(self.backend)
        # One thread leaves cores for the model servers.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._turns = EarliestDeadlineFirst()

    async def run(self, encode: Callable[[], T], num_characters: int) -> T:
        """Uses a thread if the text is long: the shorter it is, the fewer are before it."""
        if num_characters < LONG_CHARACTERS:
            return encode()
        loop = asyncio.get_running_loop()
        async with self._turns.turn(loop.time() + num_characters * PATIENCE_S):
            return await loop.run_in_executor(self._thread, encode)

    @property
    def special_tokens(self) -> dict[str, str | None]:
        return {name: getattr(self._tokenizer, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}

    @property
    def chat_template(self) -> str | None:
        return self._chat_template.source

    @property
    def chat_template_with_tools(self) -> str | None:
        """Returns the template of chats that offer tools."""
        return self._chat_template.source_with_tools

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """Returns the texts around reasoning, as the chat template writes them."""
        return self._chat_template.reasoning_marks

    @property
    def reasoning_marks_with_tools(self) -> ReasoningMarks | None:
        """Returns the reasoning marks of chats that offer tools."""
        return self._chat_template.reasoning_marks_with_tools

    @property
    def refused_efforts(self) -> tuple[str, ...]:
        """Returns the values of `reasoning_effort` that the chat template refuses."""
        return self._chat_template.refused_efforts

    @property
    def vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self.backend.get_vocab()
        return vocabulary

    def id_of(self, name: str) -> int | None:
        """Returns the id of the token of this name."""
        token: int | None = self.backend.token_to_id(name)
        return token

    def special_id(self, name: str) -> int | None:
        """Returns the id of the special token of this name."""
        token = self.id_of(name)
        return token if token is not None and self.token_bytes.is_special(token) else None

    def render_chat(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        """Raises InvalidArgument."""
        return self._chat_template.render(messages, options)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return encode_text(self.backend, text, add_special_tokens)

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        options: dict[str, Any] | None = None,
        ending: Ending = NEXT_TURN,
        parse_special_tokens: bool = False,
        now: datetime | None = None,
    ) -> list[int]:
        """`now`: what the template is told of the time; None: the time."""
        now = now or datetime.now()
        return self._chat_template.encode(messages, options or {}, ending, parse_special_tokens, now)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        text: str = self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def decode_with_offsets(self, ids: list[int], skip_special_tokens: bool = True) -> tuple[str, list[int]]:
        """Offsets are in characters."""
        text = self.decode(ids, skip_special_tokens)
        *offsets, end = self.token_bytes.offsets_of(ids, skip_special_tokens)
        # Some tokenizers strip the space before a text's first word.
        surplus = max(0, end - len(text))
        return text, [min(max(0, at - surplus), len(text)) for at in offsets]

    def bytes_of(self, token: int) -> bytes:
        """Returns bytes that may be part of a character; a special token's name."""
        return self.token_bytes.of(token)

    def has_text(self, token: int) -> bool:
        return self.token_bytes.has_text(token)

    def unfinished(self, ids: list[int]) -> tuple[list[int], int]:
        return self.token_bytes.unfinished(ids)

    def stream(self, stop: StopStrings | None = None, before: Sequence[int] = ()) -> "TextStream":
        return TextStream(self, stop, before)


class TextStream:
    """Decodes one generation's tokens; holds back incomplete characters and text that may become a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: StopStrings | None, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._stop_state = NOTHING
        # The next token's offset, including text held back.
        self.num_characters = 0
        # Text that may become a stop string.
        self._held = ""
        # The stop string that has ended the text; empty while none has.
        self.matched_stop = ""
        self._begin(list(before[-CONTEXT_TOKENS:]))

    def push(self, token: int, is_end: bool = False, may_stop: bool = True) -> str:
        """Returns the text that `token` completes; none if it ends the text."""
        if is_end:
            return ""
        chunk = self._decode(token)
        return self._release(chunk, may_stop)

    def flush(self, may_stop: bool) -> str:
        """Returns held text as `finish` does, if another text follows."""
        text = self.finish(may_stop)
        self._begin_again()
        return text

    def finish(self, may_stop: bool = True) -> str:
        """Returns held text; incomplete characters become U+FFFD."""
        if self.matched_stop:
            return ""
        text = self._release(self._flush_decoder(), may_stop)
        if self.matched_stop:
            return text
        held, self._held, self._stop_state = self._held, "", NOTHING
        return text + held

    def _begin(self, context: list[int]) -> None:
        """Gives the decoder context: some tokenizers strip the space before the first word."""
        text = self._tokenizer.decode(context)
        if text.endswith(BROKEN):
            context, text = [], ""
        self._decoder = DecodeStream(ids=context, skip_special_tokens=True)
        # The decoder's tokens, and the number of characters decoded.
        self._ids, self._num_decoded = context, len(text)
        # How many of the newest tokens are held back, and how many of their characters are out already.
        self._num_pending = self._num_surplus = 0

    def _begin_again(self) -> None:
        self._begin([each for each in self._ids if self._tokenizer.has_text(each)][-1:])

    def _decode(self, token: int) -> str:
        try:
            chunk = self._step(token)
            before = ""
        except Exception:
            # tokenizers raises bare Exception if an invalid byte changes how those before it decode. Flush their text and
            # decode the new token on its own.
            before = self._flush_decoder()
            self._begin_again()
            chunk = self._step(token)
        if self._num_pending > MAX_PENDING_TOKENS:
            chunk += self._flush_pending()
        return before + chunk

    def _step(self, token: int) -> str:
        chunk: str = self._decoder.step(self._tokenizer.backend, token) or ""
        self._ids.append(token)
        self._num_pending += 1
        if chunk:
            chunk = chunk[self._num_surplus :]
            self._num_pending = self._num_surplus = 0
        self._num_decoded += len(chunk)
        return chunk

    def _flush_pending(self) -> str:
        """Returns pending text, except bytes that may still become a character."""
        unfinished, num_surplus = self._tokenizer.unfinished(self._ids[-self._num_pending :])
        held_back = len(self._tokenizer.decode(unfinished)) - num_surplus
        rest = self._flush_decoder()
        self._begin_again()
        for token in unfinished:
            self._step(token)
        self._num_surplus = num_surplus
        self._num_decoded += num_surplus
        return rest[: len(rest) - held_back]

    def _flush_decoder(self) -> str:
        rest = self._tokenizer.decode(self._ids)[self._num_decoded :]
        self._num_decoded += len(rest)
        return rest

    def _release(self, chunk: str, may_stop: bool) -> str:
        self.num_characters += len(chunk)
        if self._stop is None:
            return chunk
        self._stop_state, start, found = self._stop.read(self._stop_state, chunk)
        text = self._held + chunk
        if found and may_stop:
            start, self._held, self.matched_stop = start + len(self._held), "", found
            return text[:start]
        num_out = len(text) - self._stop.num_held(self._stop_state)
        self._held = text[num_out:]
        return text[:num_out]


# UTF-8 has at most 4 bytes per character.
MAX_UNFINISHED_BYTES = 3
# Steps of decoders; the last two change only a text's ends and how its tokens are joined.
_KNOWN_STEPS = {"ByteLevel", "ByteFallback", "Replace", "Strip", "Fuse"}
_BYTE_NAME = re.compile(r"<0x[0-9A-F]{2}>")


def _byte_level_alphabet() -> dict[str, int]:
    """Returns GPT-2's: printable bytes are themselves, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


class TokenBytes:
    """The bytes of each token.

    Byte-level vocabularies write a byte as a printable character. Others write text, with a sign for a space, and names such as
    <0x0A> for bytes.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Added tokens are plain text.
        self._added = {id: str(token).encode() for id, token in tokenizer.get_added_tokens_decoder().items()}
        self._special = frozenset(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        steps = _decoder_steps(tokenizer)
        kinds = {step["type"] for step in steps}
        # Without a decoder, tokens are joined by spaces.
        self._has_decoder = bool(steps)
        self._alphabet = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._has_byte_names = "ByteFallback" in kinds
        self._replacements = [
            (step["pattern"]["String"], step["content"])
            for step in steps
            if step["type"] == "Replace" and "String" in step["pattern"]
        ]
        # The type of the decoder's first step that is not computed here; "" if all are.
        self.unknown_step = next((step["type"] for step in steps if step["type"] not in _KNOWN_STEPS), "")

    def of(self, token: int) -> bytes:
        """Returns no bytes for an unknown id, as in a padded vocabulary."""
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

    def written(self, token: int) -> tuple[bytes, bool]:
        """Returns a token's bytes, and whether it is a special token: these write their names."""
        return self.of(token), token in self._special

    def offsets_of(self, ids: list[int], skip_special_tokens: bool) -> list[int]:
        """Returns the characters before each token, and the total."""
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
        """Returns the last tokens if they end with an incomplete character, and the number of characters before it in them."""
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
        """Returns False for special tokens and byte names."""
        return token not in self._special and not self.is_byte(token) and bool(self.of(token))

    def is_special(self, token: int) -> bool:
        return token in self._special

    def is_byte(self, token: int) -> bool:
        written = self._tokenizer.id_to_token(token)
        return self._has_byte_names and written is not None and _BYTE_NAME.fullmatch(written) is not None


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]
