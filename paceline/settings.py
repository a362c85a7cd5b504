"""Where settings come from: flags > environment > paceline.toml > defaults."""

import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliApp,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)  # fmt: skip

from paceline.errors import ConfigError, InvalidArgument
from paceline.observability.logs import LogFormat, LogLevel
from paceline.rpc.channel import check_address
from paceline.rpc.tls import Names, Tls

TOML_FILE = "paceline.toml"
S = TypeVar("S", bound="Settings")


def as_value_error(check: Callable[[], object]) -> None:
    """For validators: pydantic expects a ValueError, and says itself which setting it is and what it holds."""
    try:
        check()
    except InvalidArgument as error:
        raise ValueError(f"it must be {error.allowed}" if error.allowed else str(error)) from error


def _check_listen(address: str) -> str:
    as_value_error(lambda: check_address("listen", address, is_listening=True))
    return address


def _check_metrics(address: str | None) -> str | None:
    if address is not None and address.startswith("unix:"):
        raise ValueError("it must be HOST:PORT")
    return address if address is None else _check_listen(address)


def _check_traces(collector: str | None) -> str | None:
    if collector is not None:
        try:
            check_address("traces", re.sub("^(https?://|unix:)", "", collector))
        except InvalidArgument:
            raise ValueError("it must be HOST:PORT, http://HOST:PORT or https://HOST:PORT") from None
    return collector


# `~` is the user's home: no shell expands it in paceline.toml, the environment or --flag=~/file.
LocalPath = Annotated[str, AfterValidator(os.path.expanduser)]
# HOST:PORT (port 0: any free one) or unix:PATH.
ListenAddress = Annotated[str, AfterValidator(_check_listen)]


class Settings(BaseSettings):
    """Base of every process's settings. Subclasses name their table in paceline.toml and their prefix."""

    # Table in paceline.toml.
    toml_table: ClassVar[str] = ""

    model_config = SettingsConfigDict(cli_kebab_case=True, cli_implicit_flags=True, extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """Later sources are overruled by earlier ones; flags come as init_settings."""
        table = {name.replace("-", "_"): value for name, value in read_toml().get(cls.toml_table, {}).items()}
        return init_settings, env_settings, InitSettingsSource(settings_cls, table)


class ServiceSettings(Settings):
    """Base of a service's settings: what it tells those who run it (docs/observability.md)."""

    metrics: Annotated[str | None, AfterValidator(_check_metrics)] = Field(
        None, description="HOST:PORT where Prometheus finds metrics; default: none"
    )
    traces: Annotated[str | None, AfterValidator(_check_traces)] = Field(
        None, description="HOST:PORT or URL of the OpenTelemetry collector that gets traces (OTLP/gRPC); default: none"
    )
    log_format: LogFormat = Field("text", description="text for people, json for machines")
    log_level: LogLevel = Field("info", description="the least that is logged: debug, info, warning or error")


def read_toml() -> dict[str, dict[str, Any]]:
    """The tables of paceline.toml in the working directory; empty if there is none. Raises ConfigError."""
    path = Path(TOML_FILE)
    if not path.is_file():
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{TOML_FILE}: {error}") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{TOML_FILE}: {name!r} stands outside of a table such as [target] or [generate]")
    return content


def parse_settings(settings: type[S], program: str) -> S:
    """Settings of a `python -m PROGRAM` process from its command line; bad usage is one line and exit 2."""
    settings.model_config["cli_prog_name"] = f"python -m {program}"
    try:
        return CliApp.run(settings, cli_exit_on_error=False)
    except ValidationError as error:
        said = "; ".join(map(str, _problems_of(error, settings.toml_table, {})))
        print(f"error: {said}", file=sys.stderr)
    except SettingsError as error:
        # Its text begins with "error".
        print(str(error).splitlines()[0], file=sys.stderr)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def make_settings(settings: type[S], given: Mapping[str, Any], names: Mapping[str, str]) -> S:
    """Settings as a process with these flags will find them: `given`, then environment, paceline.toml, defaults.

    `names`: flags by field, where they are not the fields' own. Raises InvalidArgument.
    """
    try:
        return settings(**given)
    except ValidationError as error:
        raise _problems_of(error, settings.toml_table, names)[0] from error


def as_flags(given: Mapping[str, Any]) -> list[str]:
    """The flags that say `given`: values by field."""
    flags = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def _problems_of(error: ValidationError, table: str, names: Mapping[str, str]) -> list[InvalidArgument]:
    """Returns what is wrong, one setting each, by the names of their flags."""
    problems = []
    for each in error.errors():
        field = ".".join(str(part) for part in each["loc"])
        if each["type"] == "extra_forbidden":
            problems.append(InvalidArgument(f"{TOML_FILE}, table [{table}]:", f"there is no setting {field!r}"))
            continue
        flag = names.get(field, "--" + field.replace("_", "-")) if field else ""
        said = str(each["ctx"]["error"]) if each["type"] == "value_error" else each["msg"]
        problems.append(InvalidArgument(flag, f"is {each['input']!r}: {said}" if field else said))
    return problems


SERVER_FLAGS = Names("--tls-cert", "--tls-key", "--tls-client-ca")
CLIENT_FLAGS = Names("--servers-tls-cert", "--servers-tls-key", "--servers-tls-ca")


class TlsSettings(Settings):
    """Of a process that others call."""

    tls_cert: LocalPath | None = Field(
        None, description="serve by TLS with the certificate in this file (docs/tls.md); default: no TLS"
    )
    tls_key: LocalPath | None = Field(None, description="the certificate's key, in a file; default: none")
    tls_client_ca: LocalPath | None = Field(
        None, description="every client needs a certificate of the authority in this file; default: none needs one"
    )

    @model_validator(mode="after")
    def _has_good_certificates(self) -> "TlsSettings":
        _check(self.tls, self.tls.server_context)
        return self

    @property
    def tls(self) -> Tls:
        """With which it serves."""
        return Tls(self.tls_cert, self.tls_key, self.tls_client_ca, SERVER_FLAGS)


class GrpcSettings(TlsSettings):
    """Of a process that others call by gRPC."""

    reflection: bool = Field(False, description="tell callers which services and methods there are (gRPC reflection)")


class ServersTlsSettings(Settings):
    """Of a process that calls servers."""

    servers_tls_ca: LocalPath | None = Field(
        None, description="call servers by TLS; trust certificates of the authority in this file; default: no TLS"
    )
    servers_tls_cert: LocalPath | None = Field(
        None, description="the certificate to show to servers that ask for one, in a file; default: none"
    )
    servers_tls_key: LocalPath | None = Field(None, description="that certificate's key, in a file; default: none")

    @model_validator(mode="after")
    def _has_good_certificates_for_servers(self) -> "ServersTlsSettings":
        _check(self.servers_tls, self.servers_tls.client_context)
        return self

    @property
    def servers_tls(self) -> Tls:
        """With which it calls servers."""
        return Tls(self.servers_tls_cert, self.servers_tls_key, self.servers_tls_ca, CLIENT_FLAGS)


def _check(tls: Tls, load: Callable[[], object]) -> None:
    """pydantic expects a ValueError."""
    if not tls:
        return
    try:
        load()
    except ConfigError as error:
        raise ValueError(str(error)) from error
