from paceline.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SharedVocabulary(_message.Message):
    __slots__ = ("target_vocab_size", "draft_token_ids", "target_token_ids")
    TARGET_VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    target_vocab_size: int
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    target_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, target_vocab_size: _Optional[int] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., target_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("position", "tail_tokens", "num_draft_tokens", "draft_mode", "entropy_stop", "min_probability", "guess_tokens", "max_choices", "target_position", "round_start")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODE_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_STOP_FIELD_NUMBER: _ClassVar[int]
    MIN_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    GUESS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHOICES_FIELD_NUMBER: _ClassVar[int]
    TARGET_POSITION_FIELD_NUMBER: _ClassVar[int]
    ROUND_START_FIELD_NUMBER: _ClassVar[int]
    position: int
    tail_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: int
    draft_mode: _sampling_pb2.DraftMode
    entropy_stop: EntropyStop
    min_probability: float
    guess_tokens: _containers.RepeatedScalarFieldContainer[int]
    max_choices: int
    target_position: int
    round_start: int
    def __init__(self, position: _Optional[int] = ..., tail_tokens: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[int] = ..., draft_mode: _Optional[_Union[_sampling_pb2.DraftMode, str]] = ..., entropy_stop: _Optional[_Union[EntropyStop, _Mapping]] = ..., min_probability: _Optional[float] = ..., guess_tokens: _Optional[_Iterable[int]] = ..., max_choices: _Optional[int] = ..., target_position: _Optional[int] = ..., round_start: _Optional[int] = ...) -> None: ...

class EntropyStop(_message.Message):
    __slots__ = ("rule", "entropy_ema")
    RULE_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_EMA_FIELD_NUMBER: _ClassVar[int]
    rule: _sampling_pb2.EntropyAdaptive
    entropy_ema: float
    def __init__(self, rule: _Optional[_Union[_sampling_pb2.EntropyAdaptive, _Mapping]] = ..., entropy_ema: _Optional[float] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("tokens", "support_token_ids", "support_sizes", "support_probs", "entropies", "entropy_emas", "queued_us", "compute_us", "cached_tokens", "num_fed_drafts", "confidences", "first_position")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZES_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_PROBS_FIELD_NUMBER: _ClassVar[int]
    ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_EMAS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    support_token_ids: _containers.RepeatedScalarFieldContainer[int]
    support_sizes: _containers.RepeatedScalarFieldContainer[int]
    support_probs: bytes
    entropies: bytes
    entropy_emas: bytes
    queued_us: int
    compute_us: int
    cached_tokens: int
    num_fed_drafts: int
    confidences: bytes
    first_position: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., support_token_ids: _Optional[_Iterable[int]] = ..., support_sizes: _Optional[_Iterable[int]] = ..., support_probs: _Optional[bytes] = ..., entropies: _Optional[bytes] = ..., entropy_emas: _Optional[bytes] = ..., queued_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., num_fed_drafts: _Optional[int] = ..., confidences: _Optional[bytes] = ..., first_position: _Optional[int] = ...) -> None: ...
