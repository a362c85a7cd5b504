"""llama.cpp's infill: the text between two others, as editors ask for it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.dialects.dialect import Dialect, ItemsReply
from gateway.errors import FieldNames, bad_value
from gateway.fields import get, whole_numbers
from gateway.generation import Generation
from gateway.items import Grown, Step
from gateway.requests import HttpRequest, Serving, parse_request, parse_sampling
from paceline.infill import Infill
from paceline.results import Finish

# As in other APIs. Unknown fields are ignored, as llama.cpp does: editors send many.
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
NUMBER = "a whole number"


class FillInTheMiddle(Dialect):
    """/infill."""

    path = "/infill"
    field_names: ClassVar[FieldNames] = {
        "infill": "input_prefix", "infill.prefix": "input_prefix", "infill.suffix": "input_suffix",
        "infill.extra": "input_extra", "infill.prompt": "prompt", "max_tokens": "n_predict",
        "repetition_penalty": "repeat_penalty",
    }  # fmt: skip

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        body = whole_numbers(body)
        num_tokens = get(body, "n_predict", int, NUMBER, get(body, "max_tokens", int, NUMBER, -1))
        given = {name: body.get(name) for name in SAMPLING} | {"repetition_penalty": body.get("repeat_penalty")}
        if given["seed"] == -1:
            # A random one.
            given["seed"] = None
        max_tokens = serving.deployment.target.max_model_len if num_tokens < 0 else num_tokens
        sampling = parse_sampling(given, serving.sampling_defaults, max_tokens=max_tokens)
        fields = get(body, "response_fields", list, "a list of names", [])
        return parse_request(
            {name: body.get(name) for name in ("stream", "speculation", "cache_salt", "request_id")},
            serving,
            [_parse_infill(body)],
            sampling,
            repeated={"response_fields": [str(each) for each in fields]},
        )

    def reply(self, generation: Generation) -> "InfillReply":
        return InfillReply(generation, self)


def _parse_infill(body: Mapping[str, Any]) -> Infill:
    """Raises Fault."""
    extra = []
    for at, each in enumerate(get(body, "input_extra", list, "a list of files", [])):
        match each:
            case {"text": str(text)} if isinstance(name := each.get("filename", ""), str):
                extra.append((name, text))
            case _:
                raise bad_value(f"input_extra[{at}]", each, "an object with filename and text")
    prefix, suffix, prompt = (
        get(body, name, str, "a string", "") for name in ("input_prefix", "input_suffix", "prompt")
    )
    return Infill(prefix, suffix, tuple(extra), prompt)


class InfillReply(ItemsReply):
    def begin(self) -> list[dict[str, Any]]:
        return []

    def spell(self, step: Step) -> list[dict[str, Any]]:
        return [{"content": step.piece, "tokens": [], "stop": False}] if isinstance(step, Grown) else []

    def end(self, finish: Finish) -> list[dict[str, Any]]:
        return [{**self._answer(), "content": ""}]

    def answer(self) -> dict[str, Any]:
        whole = self._answer()
        if not (names := self._request.repeated["response_fields"]):
            return whole
        # Names with a slash are paths, and keys of the response as they are.
        found = {name: _at(whole, name.split("/")) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _answer(self) -> dict[str, Any]:
        finish, usage = self._finish, self._usage
        assert finish is not None
        stop_type = "limit" if finish.reason == "length" else "word" if finish.matched_stop else "eos"
        text = "".join(each.text for each in self._items.all)
        timing = finish.timing
        num_read = usage.prompt_tokens - usage.cached_tokens
        return {
            "content": text, "tokens": [], "stop": True, "model": self._generation.model,
            "tokens_predicted": usage.completion_tokens, "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens, "truncated": False, "has_new_line": "\n" in text,
            "stop_type": stop_type, "stopping_word": finish.matched_stop,
            "timings": {
                "cache_n": usage.cached_tokens,
                **_times("prompt", num_read, timing.ttft_ms),
                **_times("predicted", usage.completion_tokens, timing.total_ms - timing.ttft_ms),
            },
            **self.paceline,
        }  # fmt: skip


def _times(name: str, count: int, ms: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / count if count else 0.0,
        f"{name}_per_second": 1e3 * count / ms if ms > 0 else 0.0,
    }


def _at(body: Any, path: list[str]) -> Any:
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body
