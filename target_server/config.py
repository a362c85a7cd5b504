"""Settings of the target server."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from paceline.serving.settings import ModelServerSettings
from paceline.settings import ListenAddress


class TargetSettings(ModelServerSettings):
    """Settings of a target server, which verifies drafts with the model whose distribution the output follows."""

    toml_table = "target"
    model_config = SettingsConfigDict(env_prefix="PACELINE_TARGET_")

    listen: ListenAddress = Field("127.0.0.1:50052", description="HOST:PORT or unix:PATH")
