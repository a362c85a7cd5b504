"""The tokens that end a text: all that the model's files name, and added tokens with a well-known name.

Files often name only the end of a document, and not that of a turn. So names count beside what they do name, except where
a name is known to mean something else.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.errors import ConfigError

# Added tokens with these names end a text. llama.cpp (llama-vocab.cpp) takes the same names.
NAMES = {
    "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>",
    "<EOT>", "_<EOT>", "[EOT]",
    # A call, after which its result must follow.
    "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>",
    # Fill-in-the-middle: padding, and the beginning of another file or repository.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|file_sep|>",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
}  # fmt: skip
# Names that mean something else beside added tokens of other names: with <|return|>, <|end|> ends one of an answer's
# messages; Gemma's </s> is HTML.
NAMES_EXCEPT_BESIDE = {
    "<|end|>": {"<|return|>", "<|call|>", "<|calls|>", "<|flush|>"},
    "</s>": {"<eos>", "<end_of_turn>", "<turn|>", "<|tool_response>"},
}
# Files that may name the tokenizer's `eos_token`; the second is of older tokenizers.
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")


def find_ends(named: Mapping[str, Any], tokenizer_files: Mapping[str, bytes], vocab_size: int) -> tuple[int, ...]:
    """`named`: each place's `eos_token_id`: an id, a list of ids or None.

    Raises ConfigError, naming the place, if an id is outside the vocabulary.
    """
    ids = [token_id for place, value in named.items() for token_id in _checked(place, value, vocab_size)]
    # A tokenizer may have more tokens than the model, which can't write them.
    ids += [token_id for token_id in _ends_of_tokenizer(tokenizer_files) if token_id < vocab_size]
    return tuple(dict.fromkeys(ids))


def _checked(place: str, value: Any, vocab_size: int) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    for token_id in ids:
        if type(token_id) is not int or token_id not in range(vocab_size):
            raise ConfigError(f"its {place} has the eos_token_id {token_id!r}; it must be in [0, {vocab_size})")
    return list(ids)


def _ends_of_tokenizer(files: Mapping[str, bytes]) -> Iterator[int]:
    vocabulary, added = read_vocabulary(files)
    known = vocabulary | added
    for name in _TOKENIZER_SETTINGS:
        if name in files:
            token = read_object(name, files[name]).get("eos_token")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and text in known:
                yield known[text]
    for name, token_id in added.items():
        others = NAMES_EXCEPT_BESIDE.get(name)
        if name in NAMES or (others is not None and others.isdisjoint(added)):
            yield token_id


def read_vocabulary(tokenizer_files: Mapping[str, bytes]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the ids of vocabulary and added tokens. Raises ConfigError if tokenizer.json can't be read."""
    tokenizer = read_object("tokenizer.json", tokenizer_files["tokenizer.json"])
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):  # tokens with scores, in the order of their ids
            vocabulary = {token: token_id for token_id, (token, _) in enumerate(vocabulary)}
        return dict(vocabulary), {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"its tokenizer.json can't be read: {error!r}") from error


def read_object(name: str, data: bytes) -> dict[str, Any]:
    """Parses the JSON object of the file `name`. Raises ConfigError, naming it."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"its {name} can't be read: {error!r}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"its {name} is not a JSON object")
    return content
