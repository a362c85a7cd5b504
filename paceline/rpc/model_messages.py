"""Converts between domain values and messages. Functions from messages raise InvalidArgument naming the field."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.checks import require
from paceline.errors import InvalidArgument
from paceline.output_format import KINDS, OutputFormat
from paceline.sampling_params import SamplingParams, check_lengths
from paceline.speculation_params import Bounds, Drafter, DraftMode, EntropyAdaptive, Rule, SpeculationParams
from paceline.v1 import generation_pb2, model_pb2, propose_pb2, sampling_pb2
from paceline.vocabulary import SharedVocabulary

# Both ends of a stream must have the same version (`ModelInfo.protocol_version`).
PROTOCOL_VERSION = 4

_DRAFT_MODES = {
    sampling_pb2.DRAFT_MODE_SAMPLED: DraftMode.SAMPLED,
    sampling_pb2.DRAFT_MODE_GREEDY: DraftMode.GREEDY,
    sampling_pb2.DRAFT_MODE_COUPLED: DraftMode.COUPLED,
}
_RULES = {sampling_pb2.RULE_MATCH: Rule.MATCH, sampling_pb2.RULE_REJECTION: Rule.REJECTION}
_SAMPLING_FIELDS = sampling_pb2.SamplingParams.DESCRIPTOR.fields
_LIST_FIELDS = [each.name for each in _SAMPLING_FIELDS if each.is_repeated and each.message_type is None]
# What is not set keeps its default.
_OPTIONAL_FIELDS = [each.name for each in _SAMPLING_FIELDS if each.has_presence]
_PLAIN_FIELDS = [each.name for each in _SAMPLING_FIELDS if not (each.is_repeated or each.has_presence)]


def sampling_from_message(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Drops duplicates from lists."""
    check_lengths(message)
    fields: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN_FIELDS}
    fields |= {name: tuple(dict.fromkeys(getattr(message, name))) for name in _LIST_FIELDS}
    fields |= {name: getattr(message, name) for name in _OPTIONAL_FIELDS if message.HasField(name)}
    return SamplingParams(logit_bias=dict(message.logit_bias), **fields)


def sampling_to_message(params: SamplingParams) -> sampling_pb2.SamplingParams:
    # A field that is None stays unset.
    return sampling_pb2.SamplingParams(**{each.name: getattr(params, each.name) for each in _SAMPLING_FIELDS})


def format_from_message(message: generation_pb2.OutputFormat) -> OutputFormat | None:
    """Returns None for an empty message."""
    if not message.ByteSize():
        return None
    given: dict[str, Any] = {}
    if kind := message.WhichOneof("kind"):
        given[kind] = tuple(message.choice.texts) if kind == "choice" else getattr(message, kind)
    return OutputFormat(**given, strict=message.strict, fixed_whitespace=message.fixed_whitespace)


def format_to_message(given: OutputFormat) -> generation_pb2.OutputFormat:
    message = generation_pb2.OutputFormat(strict=given.strict, fixed_whitespace=given.fixed_whitespace)
    if given.choice:
        message.choice.texts.extend(given.choice)
    else:
        [kind] = [name for name in KINDS if getattr(given, name)]
        setattr(message, kind, getattr(given, kind))
    return message


def speculation_from_message(message: sampling_pb2.SpeculationParams) -> dict[str, Any]:
    plain = ("enabled", "lenience", "draft_temperature")
    fields: dict[str, Any] = {name: getattr(message, name) for name in plain if message.HasField(name)}
    for name, known in (("rule", _RULES), ("draft_mode", _DRAFT_MODES)):
        # 0: unspecified.
        if getattr(message, name) != 0:
            fields[name] = _required_enum(message, name, known)
    if message.drafter:
        names = {each.value: each for each in Drafter}
        require(message.drafter in names, "drafter", message.drafter[:40], f"one of {', '.join(names)}")
        fields["drafter"] = names[message.drafter]
    if message.draft_model:
        fields["draft_model"] = message.draft_model
    match message.WhichOneof("length"):
        case "num_speculative_tokens":
            fields["num_speculative_tokens"] = message.num_speculative_tokens
        case "adaptive":
            fields["num_speculative_tokens"] = Bounds(message.adaptive.min, message.adaptive.max)
        case "entropy":
            fields["num_speculative_tokens"] = entropy_rule_from_message(message.entropy)
    return fields


def speculation_to_message(params: SpeculationParams) -> sampling_pb2.SpeculationParams:
    message = sampling_pb2.SpeculationParams(
        enabled=params.enabled,
        drafter=params.drafter.value,
        rule=rule_to_message(params.rule) if params.rule else sampling_pb2.RULE_UNSPECIFIED,
        draft_mode=draft_mode_to_message(params.draft_mode)
        if params.draft_mode
        else sampling_pb2.DRAFT_MODE_UNSPECIFIED,
        lenience=params.lenience,
        # None stays unset.
        draft_temperature=params.draft_temperature,
        draft_model=params.draft_model,
    )
    match params.num_speculative_tokens:
        case Bounds() as bounds:
            message.adaptive.CopyFrom(_bounds_to_message(bounds))
        case EntropyAdaptive() as rule:
            message.entropy.CopyFrom(entropy_rule_to_message(rule))
        case int(fixed):
            message.num_speculative_tokens = fixed
    return message


def entropy_rule_to_message(rule: EntropyAdaptive) -> sampling_pb2.EntropyAdaptive:
    return sampling_pb2.EntropyAdaptive(bounds=_bounds_to_message(rule.bounds), ema_beta=rule.ema_beta)


def entropy_rule_from_message(message: sampling_pb2.EntropyAdaptive) -> EntropyAdaptive:
    return EntropyAdaptive(Bounds(message.bounds.min, message.bounds.max), message.ema_beta)


def _bounds_to_message(bounds: Bounds) -> sampling_pb2.Bounds:
    return sampling_pb2.Bounds(min=bounds.min, max=bounds.max)


def rule_to_message(rule: Rule) -> sampling_pb2.Rule:
    return _to_enum(_RULES, rule)


def draft_mode_to_message(draft_mode: DraftMode) -> sampling_pb2.DraftMode:
    return _to_enum(_DRAFT_MODES, draft_mode)


def rule_from_message(message: Any) -> Rule:
    return _required_enum(message, "rule", _RULES)


def draft_mode_from_message(message: Any) -> DraftMode:
    return _required_enum(message, "draft_mode", _DRAFT_MODES)


def open_to_message(
    sampling: SamplingParams, num_prompt_tokens: int, eos_token_ids: Iterable[int], cache_salt: str, request_id: str,
    traceparent: str = "", grammar: str = "", grammar_bytes: int = 0, uses_draft_head: bool = False,
) -> model_pb2.Open:  # fmt: skip
    message = model_pb2.Open(
        sampling=sampling_to_message(sampling),
        num_prompt_tokens=num_prompt_tokens,
        eos_token_ids=eos_token_ids,
        cache_salt=cache_salt,
        request_id=request_id,
        traceparent=traceparent,
        grammar=grammar,
        grammar_bytes=grammar_bytes,
        uses_draft_head=uses_draft_head,
    )
    # The coordinator matches stop strings; they could make the message large.
    message.sampling.ClearField("stop")
    return message


def vocabulary_to_message(shared: SharedVocabulary) -> propose_pb2.SharedVocabulary:
    return propose_pb2.SharedVocabulary(
        target_vocab_size=shared.target_vocab_size,
        draft_token_ids=shared.draft_token_ids.tolist(),
        target_token_ids=shared.target_token_ids.tolist(),
    )


def vocabulary_from_message(message: propose_pb2.SharedVocabulary) -> SharedVocabulary:
    ids = (np.array(each, dtype=np.int64) for each in (message.draft_token_ids, message.target_token_ids))
    return SharedVocabulary(message.target_vocab_size, *ids)


def floats_to_bytes(values: NDArray[np.floating[Any]], dtype: str = "<f4") -> bytes:
    return values.astype(dtype, copy=False).tobytes()


def floats_from_bytes(data: bytes, name: str, count: int, dtype: str = "<f4") -> NDArray[Any]:
    """Raises InvalidArgument if there are not `count` floats."""
    itemsize = int(dtype[-1])
    if len(data) != count * itemsize:
        raise InvalidArgument.of_value(name, f"{len(data)} bytes", f"{count} values of {itemsize} bytes")
    return np.frombuffer(data, dtype=dtype)


def _required_enum(message: Any, name: str, known: dict[Any, Any]) -> Any:
    value = getattr(message, name)
    if value not in known:
        raise InvalidArgument.of_value(name, value, "one of " + ", ".join(member.value for member in known.values()))
    return known[value]


def _to_enum(known: dict[Any, Any], wanted: Any) -> Any:
    for number, member in known.items():
        if member is wanted:
            return number
    raise KeyError(wanted)
