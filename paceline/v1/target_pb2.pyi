from paceline.v1 import model_pb2 as _model_pb2
from paceline.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TargetRequest(_message.Message):
    __slots__ = ("commands", "demand")
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[TargetCommand]
    demand: _model_pb2.Demand
    def __init__(self, commands: _Optional[_Iterable[_Union[TargetCommand, _Mapping]]] = ..., demand: _Optional[_Union[_model_pb2.Demand, _Mapping]] = ...) -> None: ...

class TargetCommand(_message.Message):
    __slots__ = ("command_id", "sequence_id", "open", "verify", "truncate", "release", "fork")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    sequence_id: int
    open: _model_pb2.Open
    verify: Verify
    truncate: _model_pb2.Truncate
    release: _model_pb2.Release
    fork: _model_pb2.Fork
    def __init__(self, command_id: _Optional[int] = ..., sequence_id: _Optional[int] = ..., open: _Optional[_Union[_model_pb2.Open, _Mapping]] = ..., verify: _Optional[_Union[Verify, _Mapping]] = ..., truncate: _Optional[_Union[_model_pb2.Truncate, _Mapping]] = ..., release: _Optional[_Union[_model_pb2.Release, _Mapping]] = ..., fork: _Optional[_Union[_model_pb2.Fork, _Mapping]] = ...) -> None: ...

class Verify(_message.Message):
    __slots__ = ("position", "tail_tokens", "draft_tokens", "support_token_ids", "support_sizes", "rule", "logprobs", "prompt_logprobs", "lenience")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZES_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LENIENCE_FIELD_NUMBER: _ClassVar[int]
    position: int
    tail_tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    support_token_ids: _containers.RepeatedScalarFieldContainer[int]
    support_sizes: _containers.RepeatedScalarFieldContainer[int]
    rule: _sampling_pb2.Rule
    logprobs: int
    prompt_logprobs: int
    lenience: float
    def __init__(self, position: _Optional[int] = ..., tail_tokens: _Optional[_Iterable[int]] = ..., draft_tokens: _Optional[_Iterable[int]] = ..., support_token_ids: _Optional[_Iterable[int]] = ..., support_sizes: _Optional[_Iterable[int]] = ..., rule: _Optional[_Union[_sampling_pb2.Rule, str]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., lenience: _Optional[float] = ...) -> None: ...

class TargetResponse(_message.Message):
    __slots__ = ("hello", "answers", "engine_steps", "load")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    hello: _model_pb2.Hello
    answers: _containers.RepeatedCompositeFieldContainer[TargetAnswer]
    engine_steps: int
    load: _model_pb2.Load
    def __init__(self, hello: _Optional[_Union[_model_pb2.Hello, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[TargetAnswer, _Mapping]]] = ..., engine_steps: _Optional[int] = ..., load: _Optional[_Union[_model_pb2.Load, _Mapping]] = ...) -> None: ...

class TargetAnswer(_message.Message):
    __slots__ = ("command_id", "opened", "verdict", "failure", "prompt_logprobs")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    opened: _model_pb2.Opened
    verdict: Verdict
    failure: _model_pb2.Failure
    prompt_logprobs: Logprobs
    def __init__(self, command_id: _Optional[int] = ..., opened: _Optional[_Union[_model_pb2.Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., failure: _Optional[_Union[_model_pb2.Failure, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[Logprobs, _Mapping]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("tokens", "support_probs", "outside_masses", "outside_tokens", "queued_us", "computed_us", "lenient_accepts", "logprobs", "prompt_logprobs", "cached_tokens", "dead_end")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_PROBS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_MASSES_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_US_FIELD_NUMBER: _ClassVar[int]
    LENIENT_ACCEPTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEAD_END_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    support_probs: bytes
    outside_masses: bytes
    outside_tokens: _containers.RepeatedScalarFieldContainer[int]
    queued_us: int
    computed_us: int
    lenient_accepts: _containers.RepeatedScalarFieldContainer[bool]
    logprobs: Logprobs
    prompt_logprobs: Logprobs
    cached_tokens: int
    dead_end: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., support_probs: _Optional[bytes] = ..., outside_masses: _Optional[bytes] = ..., outside_tokens: _Optional[_Iterable[int]] = ..., queued_us: _Optional[int] = ..., computed_us: _Optional[int] = ..., lenient_accepts: _Optional[_Iterable[bool]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., cached_tokens: _Optional[int] = ..., dead_end: _Optional[int] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("chosen", "top_token_ids", "top")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    chosen: bytes
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top: bytes
    def __init__(self, chosen: _Optional[bytes] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top: _Optional[bytes] = ...) -> None: ...
