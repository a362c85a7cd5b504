"""Settings of the target server."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from paceline.rpc.channel import TARGET_ADDRESS
from paceline.serving.settings import ModelServerSettings
from paceline.settings import ListenAddress


class TargetSettings(ModelServerSettings):
    """Verifies drafts with the target model."""

    toml_table: ClassVar[str] = "target"
    model_config = SettingsConfigDict(env_prefix="PACELINE_TARGET_")

    listen: ListenAddress = Field(TARGET_ADDRESS, description="HOST:PORT or unix:PATH")
    draft_head: str = Field(
        "auto",
        description="folder of a draft head (EAGLE-3) made for the model, with which it drafts for itself; "
        "none: no head; auto: the one that comes with Paceline or in the checkpoint (MTP), if there is one",
    )
