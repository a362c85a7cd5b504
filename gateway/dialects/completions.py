"""OpenAI's completions of raw text."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.dialects.choices import Form, ReplyChoice, ScoredToken, finite
from gateway.errors import FieldNames, bad_request
from gateway.fields import PROMPT_NAMES, SPECULATION_NAMES, Field, flag, number, openai_fields, text, whole_numbers
from gateway.format_fields import parse_format
from gateway.items import Step
from gateway.requests import HttpRequest, Serving, parse_max_tokens, parse_prompts, parse_request, parse_sampling
from gateway.token_texts import TokenTexts
from paceline.client import Prompt
from paceline.infill_prompt import Infill

DEFAULT_TEXT_TOKENS = 16
FIELDS = openai_fields(
    {
        "prompt": Field("a text, a list of token ids, or a list of either"),
        "suffix": text("fills in the middle: the text after the completion"),
        "echo": flag("returns the prompt before the output, with its log-probabilities"),
        "logprobs": number("likeliest tokens at each position, plus the chosen one", "a whole number in [0, 20]"),
    }
)


class Completions(Form):
    """/v1/completions."""

    path = "/v1/completions"
    field_names: ClassVar[FieldNames] = {
        **SPECULATION_NAMES, **PROMPT_NAMES, "prompt_logprobs": "logprobs", "infill": "suffix",
        "infill.prefix": "prompt", "infill.suffix": "suffix",
    }  # fmt: skip
    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    whole_object = "text_completion"

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        values = FIELDS.read(whole_numbers(body))
        echo, num_likeliest, suffix = values["echo"], values["logprobs"], values["suffix"]
        longest = serving.deployment.target.max_model_len
        sampling = parse_sampling(
            values,
            serving.sampling_defaults,
            max_tokens=parse_max_tokens(values, DEFAULT_TEXT_TOKENS, longest, least=0 if echo else 1),
            logprobs=num_likeliest,
            prompt_logprobs=num_likeliest if echo else None,
        )
        prompts: Sequence[Prompt] = parse_prompts(values["prompt"], longest)
        if suffix:
            prompts = [_infill(each, suffix, echo) for each in prompts]
        return parse_request(values, serving, prompts, sampling, parse_format(values), echo=echo, is_raw=True)

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
    """Raises HttpError."""
    if not isinstance(prompt, str):
        raise bad_request("prompt", "prompt has token ids; it must be text beside suffix")
    if echo:
        raise bad_request("echo", "echo is true; it must be false beside suffix")
    return Infill(prompt, suffix)
