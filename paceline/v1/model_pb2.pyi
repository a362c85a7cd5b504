from google.rpc import status_pb2 as _status_pb2
from paceline.v1 import propose_pb2 as _propose_pb2
from paceline.v1 import sampling_pb2 as _sampling_pb2
from paceline.v1 import verify_pb2 as _verify_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenizerChunk(_message.Message):
    __slots__ = ("file_name", "data")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    data: bytes
    def __init__(self, file_name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "dtype", "quantization", "weights_fingerprint", "tokenizer_fingerprint", "vocab_size", "max_model_len", "eos_token_ids", "block_size", "total_blocks", "free_blocks", "instance_id", "protocol_version", "batch_invariant", "device", "max_num_batched_tokens", "kv_cache_dtype", "forward_times", "num_mask_tokens", "multi_steps", "grammar_engine", "numerics", "device_ids", "implementation", "num_states", "role", "draft_instance_id", "draft_head")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_TIMES_FIELD_NUMBER: _ClassVar[int]
    NUM_MASK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MULTI_STEPS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_ENGINE_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    IMPLEMENTATION_FIELD_NUMBER: _ClassVar[int]
    NUM_STATES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_HEAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    quantization: str
    weights_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_size: int
    total_blocks: int
    free_blocks: int
    instance_id: str
    protocol_version: int
    batch_invariant: bool
    device: str
    max_num_batched_tokens: int
    kv_cache_dtype: str
    forward_times: _containers.RepeatedCompositeFieldContainer[ForwardTime]
    num_mask_tokens: int
    multi_steps: int
    grammar_engine: str
    numerics: str
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    implementation: str
    num_states: int
    role: str
    draft_instance_id: str
    draft_head: DraftHead
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., weights_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., block_size: _Optional[int] = ..., total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., instance_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., batch_invariant: _Optional[bool] = ..., device: _Optional[str] = ..., max_num_batched_tokens: _Optional[int] = ..., kv_cache_dtype: _Optional[str] = ..., forward_times: _Optional[_Iterable[_Union[ForwardTime, _Mapping]]] = ..., num_mask_tokens: _Optional[int] = ..., multi_steps: _Optional[int] = ..., grammar_engine: _Optional[str] = ..., numerics: _Optional[str] = ..., device_ids: _Optional[_Iterable[str]] = ..., implementation: _Optional[str] = ..., num_states: _Optional[int] = ..., role: _Optional[str] = ..., draft_instance_id: _Optional[str] = ..., draft_head: _Optional[_Union[DraftHead, _Mapping]] = ...) -> None: ...

class DraftHead(_message.Message):
    __slots__ = ("name", "format", "weights_fingerprint", "forward_times")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FORWARD_TIMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    format: str
    weights_fingerprint: str
    forward_times: _containers.RepeatedCompositeFieldContainer[ForwardTime]
    def __init__(self, name: _Optional[str] = ..., format: _Optional[str] = ..., weights_fingerprint: _Optional[str] = ..., forward_times: _Optional[_Iterable[_Union[ForwardTime, _Mapping]]] = ...) -> None: ...

class ForwardTime(_message.Message):
    __slots__ = ("num_tokens", "microseconds")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    microseconds: float
    def __init__(self, num_tokens: _Optional[int] = ..., microseconds: _Optional[float] = ...) -> None: ...

class Reservation(_message.Message):
    __slots__ = ("num_generations", "reserved_tokens")
    NUM_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_generations: int
    reserved_tokens: int
    def __init__(self, num_generations: _Optional[int] = ..., reserved_tokens: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("others", "num_others", "free_blocks", "utilization", "is_draining", "forward_times")
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    NUM_OTHERS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    FORWARD_TIMES_FIELD_NUMBER: _ClassVar[int]
    others: Reservation
    num_others: int
    free_blocks: int
    utilization: float
    is_draining: bool
    forward_times: _containers.RepeatedCompositeFieldContainer[ForwardTime]
    def __init__(self, others: _Optional[_Union[Reservation, _Mapping]] = ..., num_others: _Optional[int] = ..., free_blocks: _Optional[int] = ..., utilization: _Optional[float] = ..., is_draining: _Optional[bool] = ..., forward_times: _Optional[_Iterable[_Union[ForwardTime, _Mapping]]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("commands", "reservation", "vocabulary")
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    reservation: Reservation
    vocabulary: _propose_pb2.SharedVocabulary
    def __init__(self, commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., reservation: _Optional[_Union[Reservation, _Mapping]] = ..., vocabulary: _Optional[_Union[_propose_pb2.SharedVocabulary, _Mapping]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("command_id", "sequence_id", "open", "propose", "verify", "truncate", "release", "fork", "suggest")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    SUGGEST_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    sequence_id: int
    open: Open
    propose: _propose_pb2.Propose
    verify: _verify_pb2.Verify
    truncate: Truncate
    release: Release
    fork: Fork
    suggest: _verify_pb2.Suggest
    def __init__(self, command_id: _Optional[int] = ..., sequence_id: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., propose: _Optional[_Union[_propose_pb2.Propose, _Mapping]] = ..., verify: _Optional[_Union[_verify_pb2.Verify, _Mapping]] = ..., truncate: _Optional[_Union[Truncate, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., fork: _Optional[_Union[Fork, _Mapping]] = ..., suggest: _Optional[_Union[_verify_pb2.Suggest, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("session_info", "answers", "engine_steps", "load")
    SESSION_INFO_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    session_info: SessionInfo
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    engine_steps: int
    load: Load
    def __init__(self, session_info: _Optional[_Union[SessionInfo, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., engine_steps: _Optional[int] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("command_id", "open_ack", "proposal", "verify_result", "failure", "prompt_logprobs", "has_more")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_ACK_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    VERIFY_RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    open_ack: OpenAck
    proposal: _propose_pb2.Proposal
    verify_result: _verify_pb2.VerifyResult
    failure: Failure
    prompt_logprobs: _verify_pb2.Logprobs
    has_more: bool
    def __init__(self, command_id: _Optional[int] = ..., open_ack: _Optional[_Union[OpenAck, _Mapping]] = ..., proposal: _Optional[_Union[_propose_pb2.Proposal, _Mapping]] = ..., verify_result: _Optional[_Union[_verify_pb2.VerifyResult, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_verify_pb2.Logprobs, _Mapping]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("sampling", "num_prompt_tokens", "eos_token_ids", "cache_salt", "request_id", "traceparent", "grammar", "grammar_bytes", "uses_draft_head")
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_BYTES_FIELD_NUMBER: _ClassVar[int]
    USES_DRAFT_HEAD_FIELD_NUMBER: _ClassVar[int]
    sampling: _sampling_pb2.SamplingParams
    num_prompt_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    cache_salt: str
    request_id: str
    traceparent: str
    grammar: str
    grammar_bytes: int
    uses_draft_head: bool
    def __init__(self, sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., num_prompt_tokens: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., cache_salt: _Optional[str] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., grammar: _Optional[str] = ..., grammar_bytes: _Optional[int] = ..., uses_draft_head: _Optional[bool] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("parent_sequence_id", "length")
    PARENT_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    parent_sequence_id: int
    length: int
    def __init__(self, parent_sequence_id: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Truncate(_message.Message):
    __slots__ = ("length",)
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    length: int
    def __init__(self, length: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("position", "tail_tokens")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    position: int
    tail_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, position: _Optional[int] = ..., tail_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session_id", "instance_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    instance_id: str
    def __init__(self, session_id: _Optional[str] = ..., instance_id: _Optional[str] = ...) -> None: ...

class OpenAck(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failure(_message.Message):
    __slots__ = ("status", "cache_length")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CACHE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    cache_length: int
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., cache_length: _Optional[int] = ...) -> None: ...

class TruncateRequest(_message.Message):
    __slots__ = ("session_id", "sequence_id", "length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    sequence_id: int
    length: int
    def __init__(self, session_id: _Optional[str] = ..., sequence_id: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class TruncateResponse(_message.Message):
    __slots__ = ("cache_length",)
    CACHE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    cache_length: int
    def __init__(self, cache_length: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session_id", "sequence_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    sequence_id: int
    def __init__(self, session_id: _Optional[str] = ..., sequence_id: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
