from paceline.v1 import model_pb2 as _model_pb2
from paceline.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("commands", "demand", "vocabulary")
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[DraftCommand]
    demand: _model_pb2.Demand
    vocabulary: SharedVocabulary
    def __init__(self, commands: _Optional[_Iterable[_Union[DraftCommand, _Mapping]]] = ..., demand: _Optional[_Union[_model_pb2.Demand, _Mapping]] = ..., vocabulary: _Optional[_Union[SharedVocabulary, _Mapping]] = ...) -> None: ...

class SharedVocabulary(_message.Message):
    __slots__ = ("target_vocab_size", "draft_token_ids", "target_token_ids")
    TARGET_VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    target_vocab_size: int
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    target_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, target_vocab_size: _Optional[int] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., target_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftCommand(_message.Message):
    __slots__ = ("command_id", "sequence_id", "open", "propose", "truncate", "release", "fork")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    sequence_id: int
    open: _model_pb2.Open
    propose: Propose
    truncate: _model_pb2.Truncate
    release: _model_pb2.Release
    fork: _model_pb2.Fork
    def __init__(self, command_id: _Optional[int] = ..., sequence_id: _Optional[int] = ..., open: _Optional[_Union[_model_pb2.Open, _Mapping]] = ..., propose: _Optional[_Union[Propose, _Mapping]] = ..., truncate: _Optional[_Union[_model_pb2.Truncate, _Mapping]] = ..., release: _Optional[_Union[_model_pb2.Release, _Mapping]] = ..., fork: _Optional[_Union[_model_pb2.Fork, _Mapping]] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("position", "tail_tokens", "num_draft_tokens", "draft_mode", "entropy_stop", "least_confidence", "guess_tokens", "max_choices", "target_position")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODE_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_STOP_FIELD_NUMBER: _ClassVar[int]
    LEAST_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    GUESS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHOICES_FIELD_NUMBER: _ClassVar[int]
    TARGET_POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    tail_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: int
    draft_mode: _sampling_pb2.DraftMode
    entropy_stop: EntropyStop
    least_confidence: float
    guess_tokens: _containers.RepeatedScalarFieldContainer[int]
    max_choices: int
    target_position: int
    def __init__(self, position: _Optional[int] = ..., tail_tokens: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[int] = ..., draft_mode: _Optional[_Union[_sampling_pb2.DraftMode, str]] = ..., entropy_stop: _Optional[_Union[EntropyStop, _Mapping]] = ..., least_confidence: _Optional[float] = ..., guess_tokens: _Optional[_Iterable[int]] = ..., max_choices: _Optional[int] = ..., target_position: _Optional[int] = ...) -> None: ...

class EntropyStop(_message.Message):
    __slots__ = ("rule", "entropy_ema")
    RULE_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_EMA_FIELD_NUMBER: _ClassVar[int]
    rule: _sampling_pb2.EntropyAdaptive
    entropy_ema: float
    def __init__(self, rule: _Optional[_Union[_sampling_pb2.EntropyAdaptive, _Mapping]] = ..., entropy_ema: _Optional[float] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("hello", "answers", "engine_steps", "load")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    hello: _model_pb2.Hello
    answers: _containers.RepeatedCompositeFieldContainer[DraftAnswer]
    engine_steps: int
    load: _model_pb2.Load
    def __init__(self, hello: _Optional[_Union[_model_pb2.Hello, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[DraftAnswer, _Mapping]]] = ..., engine_steps: _Optional[int] = ..., load: _Optional[_Union[_model_pb2.Load, _Mapping]] = ...) -> None: ...

class DraftAnswer(_message.Message):
    __slots__ = ("command_id", "opened", "proposal", "failure")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    opened: _model_pb2.Opened
    proposal: Proposal
    failure: _model_pb2.Failure
    def __init__(self, command_id: _Optional[int] = ..., opened: _Optional[_Union[_model_pb2.Opened, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., failure: _Optional[_Union[_model_pb2.Failure, _Mapping]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("tokens", "support_token_ids", "support_sizes", "support_probs", "entropies", "entropy_emas", "queued_us", "computed_us", "cached_tokens", "num_fed_drafts", "confidences")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZES_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_PROBS_FIELD_NUMBER: _ClassVar[int]
    ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_EMAS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_US_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    support_token_ids: _containers.RepeatedScalarFieldContainer[int]
    support_sizes: _containers.RepeatedScalarFieldContainer[int]
    support_probs: bytes
    entropies: bytes
    entropy_emas: bytes
    queued_us: int
    computed_us: int
    cached_tokens: int
    num_fed_drafts: int
    confidences: bytes
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., support_token_ids: _Optional[_Iterable[int]] = ..., support_sizes: _Optional[_Iterable[int]] = ..., support_probs: _Optional[bytes] = ..., entropies: _Optional[bytes] = ..., entropy_emas: _Optional[bytes] = ..., queued_us: _Optional[int] = ..., computed_us: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., num_fed_drafts: _Optional[int] = ..., confidences: _Optional[bytes] = ...) -> None: ...
