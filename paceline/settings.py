"""Where settings come from: flags > environment > paceline.toml > defaults."""

import sys
import tomllib
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)  # fmt: skip

TOML_FILE = "paceline.toml"
S = TypeVar("S", bound="Settings")


class Settings(BaseSettings):
    """Base of every process's settings. Subclasses name their table in paceline.toml and their prefix."""

    # Table in paceline.toml.
    toml_table: ClassVar[str] = ""

    model_config = SettingsConfigDict(cli_kebab_case=True, cli_implicit_flags=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        """Later sources are overruled by earlier ones; flags come as init_settings."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, read_toml(cls.toml_table))


def read_toml(table: str) -> dict[str, Any]:
    """One table of paceline.toml in the working directory; empty if there is none."""
    path = Path(TOML_FILE)
    content: dict[str, Any] = tomllib.loads(path.read_text()) if path.is_file() else {}
    for name in table.split("."):
        content = content.get(name, {})
    return content


def parse_settings(settings: type[S], program: str) -> S:
    """Settings of a `python -m PROGRAM` process from its command line; bad usage is one line and exit 2."""
    settings.model_config["cli_prog_name"] = f"python -m {program}"
    try:
        return CliApp.run(settings, cli_exit_on_error=False)
    except (ValidationError, SettingsError, tomllib.TOMLDecodeError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        sys.exit(2)


def describe(error: Exception) -> str:
    """A validation error in one line: which setting, what is wrong, what was given."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0].removeprefix("error parsing CLI: ")
    parts = []
    for problem in error.errors():
        name = "--" + "-".join(str(part) for part in problem["loc"]).replace("_", "-")
        parts.append(f"{name}: {problem['msg']} (given: {problem['input']!r})")
    return "; ".join(parts)
