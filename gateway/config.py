"""Settings of the gateway."""

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import CliToggleFlag, SettingsConfigDict

from paceline.errors import ConfigError
from paceline.keys import find_key, require_keys_or_loopback
from paceline.rpc.channel import check_address
from paceline.settings import ListenAddress, LocalPath, ServersTlsSettings, ServiceSettings, TlsSettings, as_value_error


def _check_addresses(text: str) -> str:
    for address in text.split(","):
        as_value_error(lambda address=address: check_address("coordinators", address))  # type: ignore[misc]
    return text


class GatewaySettings(TlsSettings, ServersTlsSettings, ServiceSettings):
    """OpenAI's HTTP for one or more coordinators."""

    toml_table = "gateway"
    model_config = SettingsConfigDict(env_prefix="PACELINE_GATEWAY_")

    listen: ListenAddress = Field("127.0.0.1:8000", description="HOST:PORT or unix:PATH")
    coordinators: Annotated[str, AfterValidator(_check_addresses)] = Field(
        "127.0.0.1:50050", description="addresses of coordinators, separated by commas"
    )
    patience: float = Field(
        60.0, ge=0, le=86400, description="seconds a request, begun or not, waits for coordinators that went away"
    )
    model_name: str | None = Field(
        None, description="what clients call the model; default: the target model's own name"
    )
    api_keys: LocalPath | None = Field(
        None, description="a file of API keys, one of which every caller needs (docs/keys.md); default: no keys"
    )
    no_keys: CliToggleFlag[bool] = Field(
        False, description="serve everyone, also at an address that other machines reach"
    )
    allow_origin: str | None = Field(
        None, description="for browsers: the origin whose pages may call, or *; default: none"
    )
    max_body_bytes: int = Field(8 << 20, ge=1, description="largest body of a request")
    max_open_requests: int = Field(1024, ge=1, description="most requests at once; beyond it they are told to wait")

    @model_validator(mode="after")
    def _has_keys_where_it_needs_them(self) -> "GatewaySettings":
        try:
            require_keys_or_loopback(
                self.listen, self.api_keys is not None, self.no_keys, self.tls_client_ca is not None
            )
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _can_send_its_own_key(self) -> "GatewaySettings":
        as_value_error(lambda: find_key(None))
        return self

    @property
    def addresses(self) -> list[str]:
        return self.coordinators.split(",")
