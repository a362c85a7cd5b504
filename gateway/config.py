"""Settings of the gateway."""

import json
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from paceline.keys import find_key
from paceline.rpc.address_source import AddressSource
from paceline.rpc.channel import COORDINATOR_ADDRESS
from paceline.sampling_params import SamplingParams
from paceline.settings import ListenAddress, PublicSettings, ServiceSettings, as_value_error


def _check_coordinators(text: str) -> str:
    as_value_error(lambda: AddressSource("coordinators", text))
    return text


# Parameters that may have another default.
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def _check_sampling(text: str) -> str:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(given, dict) or not given.keys() <= set(SAMPLING):
        raise ValueError(f"it must be a JSON object; known keys: {', '.join(SAMPLING)}")
    as_value_error(lambda: SamplingParams(**given))
    return text


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, each.strip()) for each in patterns.split(","))


class GatewaySettings(PublicSettings, ServiceSettings):
    """Serves an OpenAI-compatible HTTP API for one or more coordinators."""

    toml_table: ClassVar[str] = "gateway"
    first_in_help: ClassVar[tuple[str, ...]] = ("listen", "coordinators", "served_model_name", "api_keys", "no_keys")
    model_config = SettingsConfigDict(env_prefix="PACELINE_GATEWAY_")

    listen: ListenAddress = Field("127.0.0.1:8000", description="HOST:PORT or unix:PATH")
    coordinators: Annotated[str, AfterValidator(_check_coordinators)] = Field(
        COORDINATOR_ADDRESS, description="coordinators: addresses separated by commas, dns:NAME:PORT or file:PATH"
    )
    retry_timeout: float = Field(
        60.0, ge=0, le=86400, description="seconds to retry or resume a request while no coordinator is available"
    )
    served_model_name: str = Field(
        "",
        description="names of the model for clients, separated by commas; * matches anything; the first is reported, "
        "unless it has a *; default: the target model's own",
    )
    allowed_origins: str = Field(
        "", description="CORS: origins whose pages may call the API, separated by commas, or * for all"
    )
    allowed_hosts: str = Field(
        "", description="without keys: more host names to serve, separated by commas; * matches anything"
    )
    tool_choice_default: Literal["auto", "required", "none"] = Field(
        "auto", description="tool_choice of requests with tools that leave it out"
    )
    sampling_defaults: Annotated[str, AfterValidator(_check_sampling)] = Field(
        "{}", description='JSON object of sampling parameters for requests that leave them out, e.g. {"temperature": 0}'
    )
    max_body_bytes: int = Field(8 << 20, ge=1, description="maximum size of a request body, in bytes")
    max_open_requests: int = Field(
        1024, ge=1, description="maximum number of open requests; others are refused with status 429"
    )

    @model_validator(mode="after")
    def _can_send_its_own_key(self) -> "GatewaySettings":
        as_value_error(lambda: find_key(None))
        return self

    @property
    def parsed_sampling_defaults(self) -> dict[str, Any]:
        return dict(json.loads(self.sampling_defaults))

    @property
    def reported_model_name(self) -> str | None:
        """Returns the first served name; None if it is a pattern or there is none: then it is the target's own."""
        first = self.served_model_name.split(",")[0].strip()
        return first if first and "*" not in first else None

    def is_name(self, model: str) -> bool:
        """Returns whether `served_model_name` has the name."""
        return _matches(model, self.served_model_name)

    def allows_host(self, host: str) -> bool:
        """Returns whether `allowed_hosts` has the name."""
        return bool(host) and _matches(host.lower(), self.allowed_hosts.lower())
