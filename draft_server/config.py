"""Settings of the draft server."""

from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from paceline.rpc.channel import DRAFT_ADDRESS
from paceline.serving.settings import SUPPORT_MASS, SUPPORT_SIZE, ModelServerSettings
from paceline.settings import ListenAddress


class DraftSettings(ModelServerSettings):
    """Proposes tokens with a small model."""

    toml_table: ClassVar[str] = "draft"
    without_flag: ClassVar[tuple[str, ...]] = (
        *ModelServerSettings.without_flag,
        "vocab_size",
        "support_size",
        "support_mass",
    )
    model_config = SettingsConfigDict(env_prefix="PACELINE_DRAFT_")

    listen: ListenAddress = Field(DRAFT_ADDRESS, description="HOST:PORT or unix:PATH")
    model: str = Field(
        "smollm2-135m-draft", description="name from `paceline models`, hub id, folder, GGUF file, or dummy:NAME"
    )
    # Reading the weights is most of the cost of a draft step.
    quantization: Literal["auto", "none", "int8", "int4"] = Field(
        "auto",
        description="auto: on a CPU with bfloat16, GGUF weights of more than 4 bits become Q4_1; other weights become "
        "int8; int8, int4, none: as for the target server",
    )
    vocab_size: int | None = Field(
        None,
        ge=0,
        description="CPU only: draft from the first N token ids and the tokens of the context; 0 uses the whole vocabulary (default: 32768 for vocabularies of 65536 or more)",
    )
    support_size: int = Field(
        SUPPORT_SIZE, ge=1, le=4096, description="maximum number of token ids that a sampled draft chooses from"
    )
    support_mass: float = Field(
        SUPPORT_MASS, gt=0, le=1, description="probability mass that these token ids cover at most"
    )
