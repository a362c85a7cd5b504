"""The two forms of an answer: a chat's and a text's, in chunks and whole."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gateway.tokens import TokenTexts
from paceline.results import TokenLogprobs

# What JSON can't say, minus infinity, in OpenAI's words: of tokens that could not come.
LOWEST = -9999.0


class ScoredToken(NamedTuple):
    """A token with its log-probabilities: None for a prompt's first."""

    token: int
    logprobs: TokenLogprobs | None
    # Where in the choice's text its own begins, in characters.
    text_offset: int


class Form(Protocol):
    """How an answer looks. `logprobs`: None where nobody asked."""

    prefix: str
    chunk_object: str
    whole_object: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """A choice's first chunk, before any text; None: there is none."""

    def delta(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]: ...

    def whole(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]: ...

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> Any:
        """Of tokens whose texts are known."""

    def join(self, parts: list[Any]) -> Any:
        """Of log-probabilities chunk by chunk, those of the whole."""


class ChatForm:
    """/v1/chat/completions."""

    prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def whole(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> Any:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {"token": texts[token].text, "logprob": _finite(logprob), "bytes": list(texts[token].utf8)}

        content = []
        for token, each, _ in tokens:
            assert each is not None, "only a prompt's first token has none"
            likeliest = [entry(*pair) for pair in zip(each.top_token_ids, each.top_logprobs, strict=True)]
            content.append({**entry(token, each.logprob), "top_logprobs": likeliest})
        return {"content": content, "refusal": None}

    def join(self, parts: list[Any]) -> Any:
        return {"content": [entry for part in parts for entry in part["content"]], "refusal": None}


class TextForm:
    """/v1/completions."""

    prefix = "cmpl-"
    chunk_object = "text_completion"
    whole_object = "text_completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def whole(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> Any:
        """The chosen token is always among the likeliest: who compares the two finds the same float."""
        likeliest: list[dict[str, float] | None] = []
        for token, each, _ in tokens:
            if each is None:
                likeliest.append(None)
                continue
            by_text: dict[str, float] = {}
            # Likeliest first: of two tokens with the same text the likelier one stays.
            for other, logprob in zip(each.top_token_ids, each.top_logprobs, strict=True):
                by_text.setdefault(texts[other].text, _finite(logprob))
            by_text.setdefault(texts[token].text, _finite(each.logprob))
            likeliest.append(by_text)
        return {
            "tokens": [texts[each.token].text for each in tokens],
            "token_logprobs": [None if each is None else _finite(each.logprob) for _, each, _ in tokens],
            "top_logprobs": likeliest,
            "text_offset": [each.text_offset for each in tokens],
        }

    def join(self, parts: list[Any]) -> Any:
        return {name: [each for part in parts for each in part[name]] for name in parts[0]} if parts else None


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
