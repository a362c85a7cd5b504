from paceline.v1 import model_pb2 as _model_pb2
from paceline.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Origin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORIGIN_UNSPECIFIED: _ClassVar[Origin]
    ORIGIN_ACCEPTED: _ClassVar[Origin]
    ORIGIN_RECOVERED: _ClassVar[Origin]
    ORIGIN_BONUS: _ClassVar[Origin]
    ORIGIN_TARGET: _ClassVar[Origin]
    ORIGIN_FORCED: _ClassVar[Origin]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
ORIGIN_UNSPECIFIED: Origin
ORIGIN_ACCEPTED: Origin
ORIGIN_RECOVERED: Origin
ORIGIN_BONUS: Origin
ORIGIN_TARGET: Origin
ORIGIN_FORCED: Origin
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason

class GenerateRequest(_message.Message):
    __slots__ = ("text", "chat", "token_ids", "infill", "sampling", "speculation", "request_id", "prediction_text", "prediction_token_ids", "trace", "cache_salt", "format")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INFILL_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_TEXT_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: Chat
    token_ids: TokenIds
    infill: Infill
    sampling: _sampling_pb2.SamplingParams
    speculation: _sampling_pb2.SpeculationParams
    request_id: str
    prediction_text: str
    prediction_token_ids: TokenIds
    trace: bool
    cache_salt: str
    format: OutputFormat
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., infill: _Optional[_Union[Infill, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., speculation: _Optional[_Union[_sampling_pb2.SpeculationParams, _Mapping]] = ..., request_id: _Optional[str] = ..., prediction_text: _Optional[str] = ..., prediction_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., trace: _Optional[bool] = ..., cache_salt: _Optional[str] = ..., format: _Optional[_Union[OutputFormat, _Mapping]] = ...) -> None: ...

class OutputFormat(_message.Message):
    __slots__ = ("json_schema", "json_object", "regex", "choice", "grammar", "strict", "fixed_whitespace")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    FIXED_WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    json_object: bool
    regex: str
    choice: Choices
    grammar: str
    strict: bool
    fixed_whitespace: bool
    def __init__(self, json_schema: _Optional[str] = ..., json_object: _Optional[bool] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[Choices, _Mapping]] = ..., grammar: _Optional[str] = ..., strict: _Optional[bool] = ..., fixed_whitespace: _Optional[bool] = ...) -> None: ...

class Choices(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages", "template_options", "parse_special_tokens", "tools", "tool_choice", "parallel_tool_calls", "template_time")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_TIME_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    template_options: str
    parse_special_tokens: bool
    tools: str
    tool_choice: str
    parallel_tool_calls: bool
    template_time: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., template_options: _Optional[str] = ..., parse_special_tokens: _Optional[bool] = ..., tools: _Optional[str] = ..., tool_choice: _Optional[str] = ..., parallel_tool_calls: _Optional[bool] = ..., template_time: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "prefix")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    name: str
    reasoning: str
    prefix: bool
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., reasoning: _Optional[str] = ..., prefix: _Optional[bool] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Infill(_message.Message):
    __slots__ = ("prefix", "suffix", "extra", "prompt")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    suffix: str
    extra: _containers.RepeatedCompositeFieldContainer[InfillFile]
    prompt: str
    def __init__(self, prefix: _Optional[str] = ..., suffix: _Optional[str] = ..., extra: _Optional[_Iterable[_Union[InfillFile, _Mapping]]] = ..., prompt: _Optional[str] = ...) -> None: ...

class InfillFile(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "index", "token_ids", "origins", "text", "text_lengths", "finish", "logprobs", "prompt_logprobs", "trace", "prompt_tokens", "cached_prompt_tokens", "tool_calls", "reasoning", "identity")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    origins: _containers.RepeatedScalarFieldContainer[Origin]
    text: str
    text_lengths: _containers.RepeatedScalarFieldContainer[int]
    finish: Finish
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    trace: RoundTrace
    prompt_tokens: int
    cached_prompt_tokens: int
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
    reasoning: str
    identity: str
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., origins: _Optional[_Iterable[_Union[Origin, str]]] = ..., text: _Optional[str] = ..., text_lengths: _Optional[_Iterable[int]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., trace: _Optional[_Union[RoundTrace, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ..., reasoning: _Optional[str] = ..., identity: _Optional[str] = ...) -> None: ...

class RoundTrace(_message.Message):
    __slots__ = ("round", "drafter", "reason", "draft_tokens", "proposed", "num_accepted", "entropies", "draft_us", "target_us", "queued_us", "rpc_us", "smoothed_entropies", "allowed_draft_tokens", "draft_model")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    TARGET_US_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    RPC_US_FIELD_NUMBER: _ClassVar[int]
    SMOOTHED_ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_FIELD_NUMBER: _ClassVar[int]
    round: int
    drafter: str
    reason: str
    draft_tokens: int
    proposed: _containers.RepeatedCompositeFieldContainer[TracedDraft]
    num_accepted: int
    entropies: _containers.RepeatedScalarFieldContainer[float]
    draft_us: int
    target_us: int
    queued_us: int
    rpc_us: int
    smoothed_entropies: _containers.RepeatedScalarFieldContainer[float]
    allowed_draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_model: str
    def __init__(self, round: _Optional[int] = ..., drafter: _Optional[str] = ..., reason: _Optional[str] = ..., draft_tokens: _Optional[int] = ..., proposed: _Optional[_Iterable[_Union[TracedDraft, _Mapping]]] = ..., num_accepted: _Optional[int] = ..., entropies: _Optional[_Iterable[float]] = ..., draft_us: _Optional[int] = ..., target_us: _Optional[int] = ..., queued_us: _Optional[int] = ..., rpc_us: _Optional[int] = ..., smoothed_entropies: _Optional[_Iterable[float]] = ..., allowed_draft_tokens: _Optional[_Iterable[int]] = ..., draft_model: _Optional[str] = ...) -> None: ...

class TracedDraft(_message.Message):
    __slots__ = ("token_id", "text", "accepted", "q", "p", "r", "target_id", "target_text")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    R_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_TEXT_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    accepted: bool
    q: float
    p: float
    r: float
    target_id: int
    target_text: str
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., accepted: _Optional[bool] = ..., q: _Optional[float] = ..., p: _Optional[float] = ..., r: _Optional[float] = ..., target_id: _Optional[int] = ..., target_text: _Optional[str] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs", "text_offset")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    text_offset: int
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., text_offset: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "prompt_tokens", "completion_tokens", "seed", "speculation", "timing", "cached_prompt_tokens", "unenforced", "reasoning_tokens", "matched_stop", "context_full")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNENFORCED_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MATCHED_STOP_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FULL_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seed: int
    speculation: SpeculationFigures
    timing: Timing
    cached_prompt_tokens: int
    unenforced: _containers.RepeatedScalarFieldContainer[str]
    reasoning_tokens: int
    matched_stop: str
    context_full: bool
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., speculation: _Optional[_Union[SpeculationFigures, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., cached_prompt_tokens: _Optional[int] = ..., unenforced: _Optional[_Iterable[str]] = ..., reasoning_tokens: _Optional[int] = ..., matched_stop: _Optional[str] = ..., context_full: _Optional[bool] = ...) -> None: ...

class SpeculationFigures(_message.Message):
    __slots__ = ("rounds", "proposed", "accepted", "proposed_per_position", "accepted_per_position", "mean_acceptance_length", "lenience", "synthetic_acceptance_rate", "rounds_by_accepted", "prediction_accepted", "prediction_rejected", "forced")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LENIENCE_FIELD_NUMBER: _ClassVar[int]
    SYNTHETIC_ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_BY_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_REJECTED_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    proposed: int
    accepted: int
    proposed_per_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    mean_acceptance_length: float
    lenience: float
    synthetic_acceptance_rate: float
    rounds_by_accepted: _containers.RepeatedScalarFieldContainer[int]
    prediction_accepted: int
    prediction_rejected: int
    forced: int
    def __init__(self, rounds: _Optional[int] = ..., proposed: _Optional[int] = ..., accepted: _Optional[int] = ..., proposed_per_position: _Optional[_Iterable[int]] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., mean_acceptance_length: _Optional[float] = ..., lenience: _Optional[float] = ..., synthetic_acceptance_rate: _Optional[float] = ..., rounds_by_accepted: _Optional[_Iterable[int]] = ..., prediction_accepted: _Optional[int] = ..., prediction_rejected: _Optional[int] = ..., forced: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("first_token_us", "total_us", "draft_us", "target_us", "queued_us", "rpc_us")
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    TARGET_US_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    RPC_US_FIELD_NUMBER: _ClassVar[int]
    first_token_us: int
    total_us: int
    draft_us: int
    target_us: int
    queued_us: int
    rpc_us: int
    def __init__(self, first_token_us: _Optional[int] = ..., total_us: _Optional[int] = ..., draft_us: _Optional[int] = ..., target_us: _Optional[int] = ..., queued_us: _Optional[int] = ..., rpc_us: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("target", "draft", "defaults", "running", "max_num_seqs", "version", "tokenizer")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    target: _model_pb2.ModelInfo
    draft: _model_pb2.ModelInfo
    defaults: _sampling_pb2.SpeculationParams
    running: int
    max_num_seqs: int
    version: str
    tokenizer: TokenizerInfo
    def __init__(self, target: _Optional[_Union[_model_pb2.ModelInfo, _Mapping]] = ..., draft: _Optional[_Union[_model_pb2.ModelInfo, _Mapping]] = ..., defaults: _Optional[_Union[_sampling_pb2.SpeculationParams, _Mapping]] = ..., running: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., version: _Optional[str] = ..., tokenizer: _Optional[_Union[TokenizerInfo, _Mapping]] = ...) -> None: ...

class TokenizerInfo(_message.Message):
    __slots__ = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template", "refused_efforts")
    BOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAD_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_EFFORTS_FIELD_NUMBER: _ClassVar[int]
    bos_token: str
    eos_token: str
    pad_token: str
    unk_token: str
    chat_template: str
    refused_efforts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bos_token: _Optional[str] = ..., eos_token: _Optional[str] = ..., pad_token: _Optional[str] = ..., unk_token: _Optional[str] = ..., chat_template: _Optional[str] = ..., refused_efforts: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "chat", "token_ids", "infill", "add_special_tokens", "add_generation_prompt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INFILL_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: Chat
    token_ids: TokenIds
    infill: Infill
    add_special_tokens: bool
    add_generation_prompt: bool
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., infill: _Optional[_Union[Infill, _Mapping]] = ..., add_special_tokens: _Optional[bool] = ..., add_generation_prompt: _Optional[bool] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids", "skip_special_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: _Optional[bool] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text", "pieces", "text_offsets")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    text: str
    pieces: _containers.RepeatedScalarFieldContainer[bytes]
    text_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., pieces: _Optional[_Iterable[bytes]] = ..., text_offsets: _Optional[_Iterable[int]] = ...) -> None: ...
