"""Settings of the coordinator."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ByteSize, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from coordinator.drafters.ngram_table import NgramShape, parse_orders
from paceline.errors import InvalidArgument
from paceline.rpc.address_source import AddressSource
from paceline.rpc.channel import COORDINATOR_ADDRESS, DRAFT_ADDRESS, TARGET_ADDRESS
from paceline.settings import GrpcSettings, ListenAddress, LocalPath, PublicSettings, ServiceSettings, as_value_error
from paceline.speculation_params import (
    MAX_DRAFT_TOKENS,
    Drafter,
    DraftLength,
    Rule,
    SpeculationParams,
    parse_draft_length,
)

MIN_SUFFIX_CACHE_TOKENS, MAX_SUFFIX_CACHE_TOKENS = 1024, 2**24
MIN_UNREAD_BYTES = 1 << 20


def _check_servers(text: str) -> str:
    as_value_error(lambda: AddressSource("address", text))
    return text


def _check_drafts(text: str) -> str:
    return text if text == "none" else _check_servers(text)


def _check_draft_tokens(text: str) -> str:
    as_value_error(lambda: parse_draft_length(text))
    return text


def _check_orders(text: str) -> str:
    as_value_error(lambda: parse_orders(text))
    return text


def _check_drafter(name: str) -> str:
    if name not in (names := [each.value for each in Drafter]):
        raise ValueError(f"it must be one of {', '.join(names)}")
    return name


class CoordinatorSettings(GrpcSettings, PublicSettings, ServiceSettings):
    """Streams text by speculative decoding over a draft and a target server."""

    toml_table: ClassVar[str] = "coordinator"
    first_in_help: ClassVar[tuple[str, ...]] = (
        "listen", "draft", "target", "api_keys", "no_keys", "speculation", "drafter", "num_speculative_tokens", "rule", "max_num_seqs",
    )  # fmt: skip
    without_flag: ClassVar[tuple[str, ...]] = (
        "connect_timeout", "max_unread_memory", "draft_min", "draft_max", "entropy_beta", "ngram_orders", "ngram_window",
    )  # fmt: skip
    model_config = SettingsConfigDict(env_prefix="PACELINE_COORDINATOR_")

    listen: ListenAddress = Field(COORDINATOR_ADDRESS, description="HOST:PORT or unix:PATH")
    draft: Annotated[str, AfterValidator(_check_drafts)] = Field(
        DRAFT_ADDRESS,
        description="draft servers, or none: addresses separated by commas, dns:NAME:PORT or file:PATH",
    )
    target: Annotated[str, AfterValidator(_check_servers)] = Field(
        TARGET_ADDRESS, description="target servers, in the same form"
    )
    connect_timeout: float = Field(60.0, gt=0, description="seconds to wait for the servers at startup")
    target_timeout: float = Field(
        120.0, gt=0, description="seconds a generation waits while no target server is reachable"
    )
    max_num_seqs: int = Field(256, ge=1, description="maximum number of running generations")
    max_queue_size: int = Field(1024, ge=0, description="maximum length of the queue; further requests are refused")
    max_unread_memory: ByteSize = Field(
        ByteSize(256 << 20),
        ge=MIN_UNREAD_BYTES,
        description="memory limit for responses that clients have not read, e.g. 256MiB; one call may use a quarter of it",
    )
    speculation: bool = Field(True, description="speculate, unless a request says otherwise")
    drafter: Annotated[str, AfterValidator(_check_drafter)] = Field(
        "hybrid", description=f"default drafter: {', '.join(each.value for each in Drafter)}"
    )
    custom_drafter: str | None = Field(None, description="MODULE:FACTORY of your own drafter (docs/speculation.md)")
    num_speculative_tokens: Annotated[str, AfterValidator(_check_draft_tokens)] = Field(
        "adaptive", description="default number of draft tokens per round: 0 to 16, adaptive or entropy"
    )
    draft_min: int | None = Field(
        None, description="with adaptive or entropy: minimum number of draft tokens, 0 to draft_max; default: 0"
    )
    draft_max: int | None = Field(
        None,
        description=f"with adaptive or entropy: maximum number of draft tokens, 1 to {MAX_DRAFT_TOKENS}; default: 8",
    )
    entropy_beta: float | None = Field(
        None, description="with entropy: weight of the past in the smoothed entropy, in [0, 1); default: 0.5"
    )
    suffix_cache_tokens: int = Field(
        262_144,
        description="size of the suffix cache of recent responses, a source of drafts, in tokens per cache_salt; 0: none",
    )
    # Declared before the window, which must hold the longest of them.
    ngram_orders: Annotated[str, AfterValidator(_check_orders)] = Field(
        "4,3,2", description="lengths of the n-grams that are counted, last token included"
    )
    ngram_window: int = Field(4096, description="newest tokens of prompt and completion whose n-grams are counted")
    rule: Literal["auto", "match", "rejection"] = Field(
        "auto",
        description="verification rule above temperature 0; auto: match, or rejection if lenience is below 1",
    )
    synthetic_acceptance_rate: float | None = Field(
        None, ge=0, le=1, description="for benchmarks: accept drafts with this probability; the output is meaningless"
    )
    lenience: float = Field(
        1.0,
        gt=0,
        le=1,
        description="accept with min(1, p/(lenience q)); below 1 the output's distribution is not exactly the target's",
    )

    warmup_prompt: LocalPath | None = Field(
        None,
        description="file of a prompt to read whenever the target starts; if it does not exist, the first prompt with "
        "tools is recorded there",
    )

    @field_validator("suffix_cache_tokens")
    @classmethod
    def _is_none_or_many(cls, tokens: int) -> int:
        if not (tokens == 0 or MIN_SUFFIX_CACHE_TOKENS <= tokens <= MAX_SUFFIX_CACHE_TOKENS):
            raise ValueError(f"it must be 0, or in [{MIN_SUFFIX_CACHE_TOKENS}, {MAX_SUFFIX_CACHE_TOKENS}]")
        return tokens

    @field_validator("ngram_window")
    @classmethod
    def _holds_an_ngram(cls, tokens: int, others: ValidationInfo) -> int:
        orders = others.data.get("ngram_orders")
        if orders is not None:
            as_value_error(lambda: NgramShape(tokens, parse_orders(orders)))
        return tokens

    @model_validator(mode="after")
    def _has_a_draft_length(self) -> "CoordinatorSettings":
        # Not as_value_error: the message must name the setting.
        try:
            _ = self._draft_length
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _has_what_it_drafts_with(self) -> "CoordinatorSettings":
        if self.drafter == "custom" and self.custom_drafter is None:
            raise ValueError("--drafter custom needs --custom-drafter MODULE:FACTORY")
        return self

    @property
    def ngram_shape(self) -> NgramShape:
        return NgramShape(self.ngram_window, parse_orders(self.ngram_orders))

    @property
    def speculation_defaults(self) -> SpeculationParams:
        return SpeculationParams(
            enabled=self.speculation,
            drafter=Drafter(self.drafter),
            num_speculative_tokens=self._draft_length,
            rule=None if self.rule == "auto" else Rule(self.rule),
            lenience=self.lenience,
        )

    @property
    def _draft_length(self) -> DraftLength:
        return parse_draft_length(
            self.num_speculative_tokens,
            draft_min=self.draft_min,
            draft_max=self.draft_max,
            entropy_beta=self.entropy_beta,
        )
