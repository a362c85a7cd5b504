"""Settings of the services. Flags override the environment, paceline.toml and defaults, in this order."""

import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    CliToggleFlag,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)  # fmt: skip

from paceline.errors import ConfigError, InvalidArgument
from paceline.keys import require_keys_or_loopback
from paceline.observability.logs import LogFormat, LogLevel
from paceline.rpc.channel import check_address
from paceline.rpc.tls import Names, Tls

TOML_FILE = "paceline.toml"
SERVER_FLAGS = Names("--tls-cert", "--tls-key", "--tls-client-ca")
CLIENT_FLAGS = Names("--servers-tls-cert", "--servers-tls-key", "--servers-tls-ca")
S = TypeVar("S", bound="Settings")


def as_value_error(check: Callable[[], object]) -> None:
    """Runs a check in a validator: pydantic expects a ValueError, and names the setting and value itself."""
    try:
        check()
    except InvalidArgument as error:
        raise ValueError(f"it must be {error.allowed}" if error.allowed else str(error)) from error
    except ConfigError as error:
        raise ValueError(str(error)) from error


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
    # The table in paceline.toml.
    toml_table: ClassVar[str] = ""
    # Settings that --help lists first, in this order; the others are listed as advanced.
    first_in_help: ClassVar[tuple[str, ...]] = ()
    # Settings for the environment and paceline.toml only.
    without_flag: ClassVar[tuple[str, ...]] = ()

    model_config = SettingsConfigDict(cli_kebab_case=True, cli_implicit_flags=True, extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        table = {name.replace("-", "_"): value for name, value in read_toml().get(cls.toml_table, {}).items()}
        return init_settings, env_settings, InitSettingsSource(settings_cls, table)


class ServiceSettings(Settings):
    metrics: Annotated[str | None, AfterValidator(_check_metrics)] = Field(
        None, description="serve Prometheus metrics at this HOST:PORT; default: none"
    )
    traces: Annotated[str | None, AfterValidator(_check_traces)] = Field(
        None,
        description="send traces to the OpenTelemetry collector at this HOST:PORT or URL (OTLP/gRPC); default: none",
    )
    log_format: LogFormat = Field("text", description="format of log lines: text or json")
    log_level: LogLevel = Field("info", description="lowest level logged: debug, info, warning or error")


class TlsSettings(Settings):
    tls_cert: LocalPath | None = Field(
        None, description="serve over TLS with the certificate in this file (docs/server.md); default: no TLS"
    )
    tls_key: LocalPath | None = Field(None, description="file with the certificate's key; default: none")
    tls_client_ca: LocalPath | None = Field(
        None, description="require client certificates issued by the authority in this file; default: none required"
    )

    @model_validator(mode="after")
    def _has_good_certificates(self) -> "TlsSettings":
        if self.tls:
            as_value_error(self.tls.server_context)
        return self

    @property
    def tls(self) -> Tls:
        return Tls(self.tls_cert, self.tls_key, self.tls_client_ca, SERVER_FLAGS)


class GrpcSettings(TlsSettings):
    reflection: bool = Field(False, description="enable gRPC server reflection")


class PublicSettings(TlsSettings):
    """Settings of a service that users call."""

    servers_tls_ca: LocalPath | None = Field(
        None, description="call servers over TLS, trusting the authority in this file; default: no TLS"
    )
    servers_tls_cert: LocalPath | None = Field(
        None, description="file with the certificate to show to servers that ask for one; default: none"
    )
    servers_tls_key: LocalPath | None = Field(None, description="file with that certificate's key; default: none")
    servers_tls_name: str | None = Field(
        None, description="name in the servers' certificates; default: the name or IP address they are called by"
    )
    api_keys: LocalPath | None = Field(
        None, description="require an API key listed in this file (docs/server.md); default: no keys"
    )
    share_between_keys: CliToggleFlag[bool] = Field(
        False, description="let requests with different API keys share cached prompts and recent responses"
    )
    no_keys: CliToggleFlag[bool] = Field(
        False, description="serve without keys even on an address that other machines can reach"
    )

    @model_validator(mode="after")
    def _has_good_certificates_for_servers(self) -> "PublicSettings":
        if self.servers_tls:
            as_value_error(self.servers_tls.client_context)
        elif self.servers_tls_name is not None:
            raise ValueError("--servers-tls-name needs --servers-tls-ca")
        return self

    @model_validator(mode="after")
    def _has_keys_where_it_needs_them(self) -> "PublicSettings":
        # Subclasses declare `listen`, each with its own default.
        listen = getattr(self, "listen")  # noqa: B009
        has_keys, has_client_ca = self.api_keys is not None, self.tls_client_ca is not None
        as_value_error(lambda: require_keys_or_loopback(listen, has_keys, self.no_keys, has_client_ca))
        return self

    @property
    def servers_tls(self) -> Tls:
        files = self.servers_tls_cert, self.servers_tls_key, self.servers_tls_ca
        return Tls(*files, CLIENT_FLAGS, self.servers_tls_name)


def read_toml() -> dict[str, dict[str, Any]]:
    """Returns the tables of paceline.toml in the working directory. Raises ConfigError."""
    path = Path(TOML_FILE)
    if not path.is_file():
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{TOML_FILE}: {error}") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{TOML_FILE}: {name!r} must be inside a table such as [target] or [generate]")
    return content


def parse_settings(settings: type[S], program: str, arguments: list[str] | None = None) -> S:
    """Reads the settings of `python -m PROGRAM`; bad usage prints one line and exits with 2.

    `arguments`: by default those of the process.
    """
    try:
        return CliApp.run(settings, cli_args=arguments, cli_settings_source=_command_line(settings, program))
    except ValidationError as error:
        said = "; ".join(map(str, _problems_of(error, settings, {})))
        print(f"error: {said}", file=sys.stderr)
    except SettingsError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def _command_line(settings: type[S], program: str) -> CliSettingsSource[Any]:
    flags: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {}

    def collect(_: object, *names: str, **options: Any) -> None:
        flags[options.get("dest", "help")] = names, options

    def refuse(message: str) -> NoReturn:
        raise SettingsError(f"error: {message}")

    source: CliSettingsSource[Any] = CliSettingsSource(
        settings, f"python -m {program}", cli_hide_none_type=True, cli_exit_on_error=False, add_argument_method=collect
    )
    parser = source.root_parser
    parser.error = refuse
    parser.usage = f"python -m {program} [options]"
    advanced = parser.add_argument_group("advanced")
    first = ("help", *settings.first_in_help)
    for field in (*first, *(name for name in flags if name not in first)):
        if field not in settings.without_flag:
            names, options = flags[field]
            # Descriptions of settings without a default value say what is the case without them.
            options["help"] = options["help"].replace(" (default: null)", "")
            (parser if field in first else advanced).add_argument(*names, **options)
    prefix = settings.model_config.get("env_prefix", "")
    others = f"More settings, in the environment ({prefix}...) and {TOML_FILE}: {', '.join(settings.without_flag)}."
    parser.epilog = textwrap.fill(others, 80) if settings.without_flag else None
    return source


def make_settings(settings: type[S], given: Mapping[str, Any], names: Mapping[str, str]) -> S:
    """Makes settings as a process with the flags `given` finds them. Raises InvalidArgument.

    `names`: flags by field, if they differ from the fields'.
    """
    try:
        return settings(**given)
    except ValidationError as error:
        raise _problems_of(error, settings, names)[0] from error


def as_flags(given: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def _problems_of(error: ValidationError, settings: type[Settings], names: Mapping[str, str]) -> list[InvalidArgument]:
    problems = []
    for each in error.errors():
        field = ".".join(str(part) for part in each["loc"])
        if each["type"] == "extra_forbidden":
            table = f"{TOML_FILE}, table [{settings.toml_table}]:"
            problems.append(InvalidArgument(table, f"unknown setting {field!r}"))
            continue
        has_flag = bool(field) and field not in settings.without_flag
        flag = names.get(field, "--" + field.replace("_", "-")) if has_flag else field
        said = str(each["ctx"]["error"]) if each["type"] == "value_error" else each["msg"]
        problems.append(InvalidArgument(flag, f"is {each['input']!r}: {said}" if field else said))
    return problems
