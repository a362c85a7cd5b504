"""Domain values <-> messages, for all who need it."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidArgument, Unsupported
from paceline.sampling import (
    DEFAULT_MAX_TOKENS,
    Drafter,
    Drawing,
    Rule,
    SamplingParams,
    SpeculationParams,
)  # fmt: skip
from paceline.v1 import model_pb2, sampling_pb2

_DRAFTERS = {
    sampling_pb2.DRAFTER_MODEL: Drafter.MODEL,
    sampling_pb2.DRAFTER_NGRAM: Drafter.NGRAM,
    sampling_pb2.DRAFTER_HYBRID: Drafter.HYBRID,
}
_DRAWINGS = {
    sampling_pb2.DRAWING_SAMPLED: Drawing.SAMPLED,
    sampling_pb2.DRAWING_GREEDY: Drawing.GREEDY,
    sampling_pb2.DRAWING_COUPLED: Drawing.COUPLED,
}
_RULES = {sampling_pb2.RULE_MATCH: Rule.MATCH, sampling_pb2.RULE_REJECTION: Rule.REJECTION}
# Fields of SamplingParams that are in the contract and not built yet, with the value that means "not asked for".
_UNSUPPORTED_SAMPLING = {
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": None,
    "allowed_token_ids": None, "banned_token_ids": None, "n": 1, "logprobs": None, "prompt_logprobs": None,
}  # fmt: skip


def sampling_from_message(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Raises InvalidArgument naming a field out of range, Unsupported naming one that is not built yet."""
    for name, neutral in _UNSUPPORTED_SAMPLING.items():
        if _is_set(message, name) and getattr(message, name) != neutral:
            raise Unsupported(f"{name} is not supported by this version")
    return SamplingParams(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else DEFAULT_MAX_TOKENS,
        min_tokens=message.min_tokens,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        seed=message.seed if message.HasField("seed") else None,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def sampling_to_message(params: SamplingParams) -> sampling_pb2.SamplingParams:
    message = sampling_pb2.SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
    )
    if params.seed is not None:
        message.seed = params.seed
    return message


def speculation_from_message(message: sampling_pb2.SpeculationParams, defaults: SpeculationParams) -> SpeculationParams:
    """Unset fields are the coordinator's. Raises InvalidArgument, or Unsupported naming the field."""
    length = message.WhichOneof("length")
    if length in ("adaptive", "entropy"):
        raise Unsupported(f"length.{length} is not supported by this version")
    if message.HasField("lenience") and message.lenience != 1:
        raise Unsupported("lenience is not supported by this version")
    drafter = _from_enum(message, "drafter", _DRAFTERS, defaults.drafter)
    if drafter is not Drafter.MODEL:
        raise Unsupported(f"drafter {drafter.value!r} is not supported by this version")
    return SpeculationParams(
        enabled=message.enabled if message.HasField("enabled") else defaults.enabled,
        drafter=drafter,
        num_draft_tokens=message.num_draft_tokens if length == "num_draft_tokens" else defaults.num_draft_tokens,
        rule=_from_enum(message, "rule", _RULES, defaults.rule),
        drawing=_from_enum(message, "drawing", _DRAWINGS, defaults.drawing),
    )


def speculation_to_message(params: SpeculationParams) -> sampling_pb2.SpeculationParams:
    return sampling_pb2.SpeculationParams(
        enabled=params.enabled,
        drafter=_to_enum(_DRAFTERS, params.drafter),
        num_draft_tokens=params.num_draft_tokens,
        rule=rule_to_message(params.rule),
        drawing=drawing_to_message(params.drawing) if params.drawing else sampling_pb2.DRAWING_UNSPECIFIED,
    )


def rule_to_message(rule: Rule) -> Any:
    return _to_enum(_RULES, rule)


def drawing_to_message(drawing: Drawing) -> Any:
    return _to_enum(_DRAWINGS, drawing)


def rule_from_message(message: Any) -> Rule:
    """Raises InvalidArgument where a command does not say."""
    return _required_enum(message, "rule", _RULES)


def drawing_from_message(message: Any) -> Drawing:
    """Raises InvalidArgument where a command does not say."""
    return _required_enum(message, "drawing", _DRAWINGS)


def open_to_message(sampling: SamplingParams, num_prompt_tokens: int, eos_token_ids: Iterable[int]) -> model_pb2.Open:
    return model_pb2.Open(
        sampling=sampling_to_message(sampling), num_prompt_tokens=num_prompt_tokens, eos_token_ids=eos_token_ids
    )


def floats_to_bytes(values: NDArray[np.floating[Any]], dtype: str = "<f4") -> bytes:
    """Packed little-endian floats."""
    return values.astype(dtype, copy=False).tobytes()


def floats_from_bytes(data: bytes, name: str, count: int, dtype: str = "<f4") -> NDArray[Any]:
    """Unpacks `count` floats. Raises InvalidArgument, naming the field, where the size is another."""
    values = np.frombuffer(data, dtype=dtype) if len(data) == count * np.dtype(dtype).itemsize else None
    if values is None:
        raise InvalidArgument.field(name, f"{len(data)} bytes", f"{count} values of {np.dtype(dtype).itemsize} bytes")
    return values


def _is_set(message: Any, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    return bool(message.HasField(name)) if field.has_presence else bool(getattr(message, name))


def _from_enum(message: Any, name: str, known: dict[Any, Any], default: Any) -> Any:
    """An enum field's domain value; 0 means the default."""
    return default if getattr(message, name) == 0 else _required_enum(message, name, known)


def _required_enum(message: Any, name: str, known: dict[Any, Any]) -> Any:
    value = getattr(message, name)
    if value not in known:
        raise InvalidArgument.field(name, value, "one of " + ", ".join(member.value for member in known.values()))
    return known[value]


def _to_enum(known: dict[Any, Any], wanted: Any) -> Any:
    return next(number for number, member in known.items() if member is wanted)
