"""Tells control tokens that a chat template writes from those spelled in a message.

1. `mark` inserts a mark into each control token that a message spells; after rendering, the unmarked are the template's.
2. `encode` gives these secret names, and tokenizes with a tokenizer that knows control tokens only by them.
"""

import json
import re
import secrets
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer


class ControlTokens:
    def __init__(self, backend: Tokenizer, ids: Iterable[int]) -> None:
        """`ids`: added tokens, at least one, with names of two or more characters."""
        self._backend = backend
        self._added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self._names: dict[int, str] = {token_id: str(self._added[token_id]) for token_id in ids}
        names = self._names.values()
        self._pattern = re.compile(_any_of(names))
        self._longest = max(map(len, names))
        self._beginnings = {name[:length] for name in names for length in range(1, len(name))}
        self._endings = {name[start:] for name in names for start in range(1, len(name))}
        # Random private-use characters: template filters keep them, and no message contains them.
        self._mark = "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(4))
        self._secret_names = {name: f"\ue000{secrets.token_hex(16)}\ue000" for name in names}

    def mark(self, value: Any) -> Any:
        """Marks all strings in `value`, also against control tokens formed with adjacent text."""
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, list):
            return [self.mark(each) for each in value]
        if isinstance(value, dict):
            return {self.mark(key): self.mark(each) for key, each in value.items()}
        return value

    def unmark(self, text: str) -> str:
        return text.replace(self._mark, "")

    def spelled(self, text: str) -> list[str]:
        """Returns the unmarked control tokens in a text."""
        found: list[str] = self._pattern.findall(text)
        return found

    def among(self, ids: Iterable[int]) -> list[str]:
        return [self._names[token_id] for token_id in ids if token_id in self._names]

    def encode(self, text: str) -> list[int]:
        named = self.unmark(self._pattern.sub(lambda found: self._secret_names[found[0]], text))
        ids = self._sharing.encode(named)
        if ids is None:
            ids = self._renamed.encode(named)
        assert ids is not None
        return ids

    def _marked(self, text: str) -> str:
        # Names may overlap.
        while self._pattern.search(text):
            text = self._pattern.sub(lambda found: found[0][0] + self._mark + found[0][1:], text)
        lengths = range(1, min(len(text) + 1, self._longest))
        if any(text[:length] in self._endings for length in lengths):
            text = self._mark + text
        if any(text[-length:] in self._beginnings for length in lengths):
            text = text + self._mark
        return text

    @cached_property
    def _sharing(self) -> "_SecretNames":
        tokenizer = Tokenizer(self._backend.model)
        if self._backend.normalizer is not None:
            tokenizer.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            tokenizer.pre_tokenizer = self._backend.pre_tokenizer
        return _SecretNames(tokenizer, self._added, self._secret_names)

    @cached_property
    def _renamed(self) -> "_SecretNames":
        """Serves models that make control tokens of plain text (unigram, or by merges). Takes a second for 100,000 tokens."""
        content, secret = json.loads(self._backend.to_str()), self._secret_names
        content["added_tokens"], model = [], content["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {secret.get(token, token): token_id for token, token_id in model["vocab"].items()}
        else:
            model["vocab"] = [[secret.get(token, token), score] for token, score in model["vocab"]]
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & secret.keys()]
        if model.get("unk_token") in secret:
            model["unk_token"] = secret[model["unk_token"]]
        return _SecretNames(Tokenizer.from_str(json.dumps(content)), self._added, secret)


class _SecretNames:
    """Knows control tokens by other names."""

    def __init__(self, tokenizer: Tokenizer, added: dict[int, AddedToken], secret_names: dict[str, str]) -> None:
        """`tokenizer`: without added tokens."""
        self._tokenizer = tokenizer
        known = (tokenizer.token_to_id(name) for name in secret_names)
        # Control tokens in the model's own vocabulary.
        self._in_model = {token_id for token_id in known if token_id is not None}
        renamed = {token_id: _renamed(token, secret_names) for token_id, token in added.items()}
        tokenizer.add_tokens(list(renamed.values()))
        # An added token that is not in the model's vocabulary gets a new id.
        self._originals = {tokenizer.token_to_id(str(token)): token_id for token_id, token in renamed.items()}

    def encode(self, text: str) -> list[int] | None:
        """Returns None if the model makes a control token of plain text."""
        ids = encode_text(self._tokenizer, text)
        if self._in_model.intersection(ids):
            return None
        return [self._originals.get(token_id, token_id) for token_id in ids]


def encode_text(tokenizer: Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """Lets other threads run and computes no offsets. The library's call for a single text does neither."""
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids


def _renamed(token: AddedToken, secret_names: dict[str, str]) -> AddedToken:
    if (name := secret_names.get(str(token))) is None:
        return token
    # Not single_word: the pattern has already found the token.
    return AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)


def _any_of(names: Iterable[str]) -> str:
    """Returns a regex for the longest of the names: a trie, so its time does not grow with their number."""
    trie: dict[str, Any] = {}
    for name in names:
        node = trie
        for character in name:
            node = node.setdefault(character, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        chain = ""
        while len(node) == 1 and "" not in node:
            [(character, node)] = node.items()
            chain += re.escape(character)
        branches = [re.escape(character) + pattern(rest) for character, rest in node.items() if character]
        if branches:
            chain += f"(?:{'|'.join(branches)})" + ("?" if "" in node else "")
        return chain

    return pattern(trie)
