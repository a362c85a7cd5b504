"""Settings of the coordinator."""

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from paceline.sampling import Drafter, DraftMode, Rule, SpeculationParams, parse_draft_length
from paceline.settings import Settings


class CoordinatorSettings(Settings):
    """Streams text by speculative decoding over a draft and a target server."""

    toml_table = "coordinator"
    model_config = SettingsConfigDict(env_prefix="PACELINE_COORDINATOR_")

    listen: str = Field("127.0.0.1:50050", description="HOST:PORT or unix:PATH")
    draft: str = Field("127.0.0.1:50051", description="address of the draft server, or none")
    target: str = Field("127.0.0.1:50052", description="address of the target server")
    connect_timeout: float = Field(60.0, gt=0, description="seconds to wait for the servers at start")
    patience: float = Field(120.0, gt=0, description="seconds a generation waits for a target that went away")
    max_running: int = Field(256, ge=1, description="most generations at once")
    max_waiting: int = Field(1024, ge=0, description="most requests waiting for a place; beyond it they are refused")
    speculation: bool = Field(True, description="speculate where a request does not say")
    drafter: Literal["model", "ngram", "hybrid", "custom"] = Field(
        "model", description="where proposals come from where a request does not say"
    )
    custom_drafter: str | None = Field(None, description="MODULE:FACTORY of a drafter of your own (docs/drafting.md)")
    draft_tokens: str = Field(
        "4", description="tokens proposed in a round where a request does not say: 0 to 16, adaptive or entropy"
    )
    rule: Literal["match", "rejection"] = Field("rejection", description="verification rule above temperature 0")
    coupled: bool = Field(False, description="the draft draws with the target's noise where a request does not say")
    synthetic_acceptance: float | None = Field(
        None, ge=0, le=1, description="for benchmarks: accept drafts with this chance; what comes out is no real text"
    )
    lenience: float = Field(1.0, gt=0, le=1, description="below 1 the output's law is not quite the target's")

    @property
    def speculation_defaults(self) -> SpeculationParams:
        return SpeculationParams(
            enabled=self.speculation,
            drafter=Drafter(self.drafter),
            num_draft_tokens=parse_draft_length(self.draft_tokens),
            rule=Rule.MATCH if self.coupled else Rule(self.rule),
            draft_mode=DraftMode.COUPLED if self.coupled else None,
            lenience=self.lenience,
        )
