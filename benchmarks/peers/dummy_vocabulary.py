"""A made-up byte-level vocabulary of Llama 3's size, as GGUF files list it.

Tokens are all bytes, then words of two to four letters with and without a leading space, then control tokens with Llama
3's names and ids.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, product
from string import ascii_lowercase

from gguf import TokenType
from transformers.convert_slow_tokenizer import bytes_to_unicode

# Of Llama 3: what a start costs depends on them too.
NUM_TOKENS, NUM_CONTROLS, NUM_MERGES = 128_256, 256, 280_147
BOS_TOKEN_ID, EOS_TOKEN_ID = 128_000, 128_009
CONTROLS = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
}
# A space, in GPT-2's alphabet of bytes.
SPACE = "\u0120"
CHAT_TEMPLATE = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)


class DummyVocabulary:
    """A deterministic vocabulary."""

    def __init__(self) -> None:
        alphabet = list(bytes_to_unicode().values())
        words = list(islice(_words(), NUM_TOKENS - NUM_CONTROLS - len(alphabet)))
        controls = [CONTROLS.get(i, f"<|reserved_special_token_{i}|>") for i in range(NUM_CONTROLS)]
        self.tokens: list[str] = alphabet + words + controls
        self.types = [TokenType.NORMAL] * (len(alphabet) + len(words)) + [TokenType.CONTROL] * len(controls)
        self.merges = list(islice(_merges(words, {*alphabet, *words}), NUM_MERGES))


def _words() -> Iterator[str]:
    """Yields short words first, so that a word's parts precede it."""
    for length in (1, 2, 3, 4):
        words = ["".join(letters) for letters in product(ascii_lowercase, repeat=length)]
        if length > 1:
            yield from words
        if length < 4:
            yield from (SPACE + word for word in words)


def _merges(words: Iterable[str], known: set[str]) -> Iterator[str]:
    """Yields the merge of each word from the word without its last letter, then all other merges."""
    last = (f"{word[:-1]} {word[-1]}" for word in words)
    others = (f"{word[:i]} {word[i:]}" for word in words for i in range(1, len(word) - 1) if word[i:] in known)
    return chain(last, others)
