"""llama.cpp's infill: the text between two others, as editors ask for it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.dialects.dialect import Dialect, ItemsReply
from gateway.errors import FieldNames, bad_value
from gateway.fields import EXTENSIONS, SAMPLING, STREAM, Field, Fields, Values, listing, number, text, whole_numbers
from gateway.items import ItemDelta, Step
from gateway.requests import HttpRequest, Serving, parse_max_tokens, parse_request, parse_sampling
from gateway.resumed_generation import Generation
from paceline.chats import MAX_PARTS
from paceline.checks import require_at_most
from paceline.infill_prompt import Infill
from paceline.results import Finish

_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
# llama.cpp ignores unknown fields, and editors send many.
FIELDS = Fields(
    {
        "input_prefix": text("the text before"),
        "input_suffix": text("the text after"),
        "prompt": text("goes after input_prefix"),
        "input_extra": listing("other files", "a list of files"),
        "n_predict": number("maximum number of tokens to generate", stands_for="max_tokens"),
        "max_tokens": number("OpenAI's name of n_predict"),
        "response_fields": listing("names of the answer's fields to return", "a list of names"),
        "repeat_penalty": Field("as everywhere", stands_for="repetition_penalty"),
        **{name: SAMPLING[name] for name in _SAMPLED},
        **{name: EXTENSIONS[name] for name in ("speculation", "cache_salt", "request_id")},
        "stream": STREAM,
    },
    takes_others=True,
)


class FillInTheMiddle(Dialect):
    """/infill."""

    path = "/infill"
    field_names: ClassVar[FieldNames] = {
        "infill": "input_prefix", "infill.prefix": "input_prefix", "infill.suffix": "input_suffix",
        "infill.extra": "input_extra", "infill.prompt": "prompt", "max_tokens": "n_predict",
    }  # fmt: skip

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        values = FIELDS.read(whole_numbers(body))
        longest = serving.deployment.target.max_model_len
        if values["seed"] == -1:
            # A random one.
            values["seed"] = None
        sampling = parse_sampling(
            values, serving.sampling_defaults, max_tokens=parse_max_tokens(values, longest, longest, least=0)
        )
        fields = [str(each) for each in values["response_fields"]]
        return parse_request(values, serving, [_parse_infill(values)], sampling, repeated={"response_fields": fields})

    def reply(self, generation: Generation) -> "InfillReply":
        return InfillReply(generation, self)


def _parse_infill(values: Values) -> Infill:
    """Raises HttpError."""
    extra, files = [], values["input_extra"]
    require_at_most(MAX_PARTS, len(files), "input_extra", "files")
    for at, each in enumerate(files):
        match each:
            case {"text": str(text)} if isinstance(name := each.get("filename", ""), str):
                extra.append((name, text))
            case _:
                raise bad_value(f"input_extra[{at}]", each, "an object with filename and text")
    return Infill(values["input_prefix"], values["input_suffix"], tuple(extra), values["prompt"])


class InfillReply(ItemsReply):
    def begin(self) -> list[dict[str, Any]]:
        return []

    def spell(self, step: Step) -> list[dict[str, Any]]:
        return [{"content": step.new_text, "tokens": [], "stop": False}] if isinstance(step, ItemDelta) else []

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
