"""Settings of the draft server."""

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from paceline.serving.settings import ModelServerSettings


class DraftSettings(ModelServerSettings):
    """Settings of a draft server, which proposes tokens from a small model."""

    toml_table = "draft"
    model_config = SettingsConfigDict(env_prefix="PACELINE_DRAFT_")

    model: str = Field("smollm2-135m-draft", description="hub id, folder, GGUF file, smollm2-135m-draft, or dummy:NAME")
    # A step of the draft reads all its weights, and is most of what drafting costs.
    quantization: Literal["auto", "none", "int8", "int4"] = Field(
        "int8", description="as for the target; int8 leaves weights that a GGUF file has quantised as they are"
    )
    support_size: int = Field(256, ge=1, le=4096, description="most token ids a sampled draft chooses among")
    support_mass: float = Field(0.995, gt=0, le=1, description="probability mass at which they are cut")
