"""Settings of the gateway."""

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import CliToggleFlag, SettingsConfigDict

from paceline.errors import ConfigError
from paceline.keys import find_key, require_keys_or_loopback
from paceline.rpc.channel import check_address
from paceline.rpc.settings import ServersTlsSettings, TlsSettings
from paceline.settings import ListenAddress, LocalPath, ServiceSettings, as_value_error


def _check_addresses(text: str) -> str:
    for address in text.split(","):
        as_value_error(lambda address=address: check_address("coordinators", address))  # type: ignore[misc]
    return text


class GatewaySettings(TlsSettings, ServersTlsSettings, ServiceSettings):
    """An OpenAI-compatible HTTP API in front of one or more coordinators."""

    toml_table = "gateway"
    model_config = SettingsConfigDict(env_prefix="PACELINE_GATEWAY_")

    listen: ListenAddress = Field("127.0.0.1:8000", description="HOST:PORT or unix:PATH")
    coordinators: Annotated[str, AfterValidator(_check_addresses)] = Field(
        "127.0.0.1:50050", description="coordinator addresses, separated by commas"
    )
    patience: float = Field(
        60.0, ge=0, le=86400, description="seconds to retry or resume a request while no coordinator is available"
    )
    model_name: str | None = Field(None, description="model name that clients use; default: the target model's name")
    api_keys: LocalPath | None = Field(
        None, description="file of API keys; every caller needs one (docs/keys.md); default: no keys"
    )
    no_keys: CliToggleFlag[bool] = Field(
        False, description="serve without keys, even on an address that other machines can reach"
    )
    allow_origin: str | None = Field(None, description="CORS: origin whose pages may call the API, or *; default: none")
    max_body_bytes: int = Field(8 << 20, ge=1, description="maximum size of a request body")
    max_open_requests: int = Field(
        1024, ge=1, description="maximum number of open requests; others are refused with status 429"
    )

    @model_validator(mode="after")
    def _require_keys(self) -> "GatewaySettings":
        try:
            require_keys_or_loopback(
                self.listen, self.api_keys is not None, self.no_keys, self.tls_client_ca is not None
            )
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _check_own_key(self) -> "GatewaySettings":
        as_value_error(lambda: find_key(None))
        return self

    @property
    def addresses(self) -> list[str]:
        return self.coordinators.split(",")
