from paceline.v1 import propose_pb2 as _propose_pb2
from paceline.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verify(_message.Message):
    __slots__ = ("position", "tail_tokens", "draft_tokens", "support_token_ids", "support_sizes", "rule", "logprobs", "prompt_logprobs", "lenience", "next_propose", "num_next_drafts", "next_min_probability", "num_more_rounds")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZES_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LENIENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_PROPOSE_FIELD_NUMBER: _ClassVar[int]
    NUM_NEXT_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_MIN_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    NUM_MORE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    position: int
    tail_tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    support_token_ids: _containers.RepeatedScalarFieldContainer[int]
    support_sizes: _containers.RepeatedScalarFieldContainer[int]
    rule: _sampling_pb2.Rule
    logprobs: int
    prompt_logprobs: int
    lenience: float
    next_propose: NextPropose
    num_next_drafts: int
    next_min_probability: float
    num_more_rounds: int
    def __init__(self, position: _Optional[int] = ..., tail_tokens: _Optional[_Iterable[int]] = ..., draft_tokens: _Optional[_Iterable[int]] = ..., support_token_ids: _Optional[_Iterable[int]] = ..., support_sizes: _Optional[_Iterable[int]] = ..., rule: _Optional[_Union[_sampling_pb2.Rule, str]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., lenience: _Optional[float] = ..., next_propose: _Optional[_Union[NextPropose, _Mapping]] = ..., num_next_drafts: _Optional[int] = ..., next_min_probability: _Optional[float] = ..., num_more_rounds: _Optional[int] = ...) -> None: ...

class Suggest(_message.Message):
    __slots__ = ("position", "tokens", "is_last")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    position: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    is_last: bool
    def __init__(self, position: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., is_last: _Optional[bool] = ...) -> None: ...

class NextPropose(_message.Message):
    __slots__ = ("session_id", "sequence_id", "command_id", "cache_length", "propose")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    sequence_id: int
    command_id: int
    cache_length: int
    propose: _propose_pb2.Propose
    def __init__(self, session_id: _Optional[str] = ..., sequence_id: _Optional[int] = ..., command_id: _Optional[int] = ..., cache_length: _Optional[int] = ..., propose: _Optional[_Union[_propose_pb2.Propose, _Mapping]] = ...) -> None: ...

class VerifyResult(_message.Message):
    __slots__ = ("tokens", "support_probs", "outside_masses", "outside_tokens", "queued_us", "compute_us", "lenient_accepts", "logprobs", "prompt_logprobs", "cached_tokens", "first_invalid_position", "next_drafts", "drafting_us", "suggested_tokens")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_PROBS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_MASSES_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    LENIENT_ACCEPTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_INVALID_POSITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_US_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    support_probs: bytes
    outside_masses: bytes
    outside_tokens: _containers.RepeatedScalarFieldContainer[int]
    queued_us: int
    compute_us: int
    lenient_accepts: _containers.RepeatedScalarFieldContainer[bool]
    logprobs: Logprobs
    prompt_logprobs: Logprobs
    cached_tokens: int
    first_invalid_position: int
    next_drafts: NextDrafts
    drafting_us: int
    suggested_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., support_probs: _Optional[bytes] = ..., outside_masses: _Optional[bytes] = ..., outside_tokens: _Optional[_Iterable[int]] = ..., queued_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., lenient_accepts: _Optional[_Iterable[bool]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., cached_tokens: _Optional[int] = ..., first_invalid_position: _Optional[int] = ..., next_drafts: _Optional[_Union[NextDrafts, _Mapping]] = ..., drafting_us: _Optional[int] = ..., suggested_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class NextDrafts(_message.Message):
    __slots__ = ("first_position", "tokens", "confidences")
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    first_position: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    confidences: bytes
    def __init__(self, first_position: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., confidences: _Optional[bytes] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("chosen", "top_token_ids", "top")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    chosen: bytes
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top: bytes
    def __init__(self, chosen: _Optional[bytes] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top: _Optional[bytes] = ...) -> None: ...
