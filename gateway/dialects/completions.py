"""OpenAI's completions of raw text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.dialects.choices import Form, ReplyChoice, ScoredToken, finite
from gateway.errors import bad_request
from gateway.fields import TEXT, TEXT_NAMES, check_fields, flag, get, whole_numbers
from gateway.formats import parse_format
from gateway.items import Step
from gateway.requests import HttpRequest, Serving, parse_prompts, parse_request, parse_sampling
from gateway.router import TokenTexts
from paceline.client import Prompt
from paceline.infill import Infill

DEFAULT_TEXT_TOKENS = 16


class Completions(Form):
    """/v1/completions."""

    path = "/v1/completions"
    field_names = TEXT_NAMES
    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    whole_object = "text_completion"

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        check_fields(body, TEXT)
        body = whole_numbers(body)
        max_tokens = get(body, "max_tokens", int, "a whole number", DEFAULT_TEXT_TOKENS)
        echo = flag(body, "echo")
        num_likeliest = get(body, "logprobs", int, "a whole number in [0, 20]")
        if max_tokens == 0 and not echo:
            raise bad_request("max_tokens", "max_tokens is 0; it must be at least 1, or 0 with echo")
        sampling = parse_sampling(body, serving.sampling_defaults, max_tokens=max_tokens, logprobs=num_likeliest)
        if echo and num_likeliest is not None:
            sampling = replace(sampling, prompt_logprobs=num_likeliest)
        prompts: Sequence[Prompt] = (texts := parse_prompts(body))
        if suffix := get(body, "suffix", str, "a string", ""):
            prompts = [_infill(each, suffix, echo) for each in texts]
        return parse_request(body, serving, prompts, sampling, format=parse_format(body), echo=echo, is_raw=True)

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def deltas(
        self, index: int, text: str, steps: list[Step], logprobs: dict[str, Any] | None, reason: str | None
    ) -> list[dict[str, Any]]:
        return [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}]

    def whole(self, choice: ReplyChoice, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {"index": choice.index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.reason}

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> dict[str, Any]:
        """Includes the chosen token in `top_logprobs`, with the same float."""
        likeliest: list[dict[str, float] | None] = []
        for token, each, _ in tokens:
            if each is None:
                likeliest.append(None)
                continue
            by_text: dict[str, float] = {}
            # Sorted: of two tokens with the same text, the more likely one is kept.
            for other, logprob in zip(each.top_token_ids, each.top_logprobs, strict=True):
                by_text.setdefault(texts[other].text, finite(logprob))
            by_text.setdefault(texts[token].text, finite(each.logprob))
            likeliest.append(by_text)
        return {
            "tokens": [texts[each.token].text for each in tokens],
            "token_logprobs": [None if each is None else finite(each.logprob) for _, each, _ in tokens],
            "top_logprobs": likeliest,
            "text_offset": [each.text_offset for each in tokens],
        }

    def join_logprobs(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: [each for part in parts for each in part[name]] for name in parts[0]}


def _infill(prompt: Prompt, suffix: str, echo: bool) -> Infill:
    """Raises Fault."""
    if not isinstance(prompt, str):
        raise bad_request("prompt", "prompt has token ids; it must be text beside suffix")
    if echo:
        raise bad_request("echo", "echo is true; it must be false beside suffix")
    return Infill(prompt, suffix)
