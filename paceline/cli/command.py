"""Commands of `paceline`: their help, settings without a flag, and hints if no coordinator answers."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import typer

from paceline.errors import Unauthenticated, Unavailable, Unreachable
from paceline.keys import ENVIRONMENT
from paceline.rpc.tls import ENVIRONMENT as TLS_ENVIRONMENT
from paceline.settings import TOML_FILE

T = TypeVar("T")

# The panel of options that --help lists last. Typer shows panels in frames only, which cut long names.
ADVANCED = "Advanced options"


class Command(typer.core.TyperCommand):
    """A command whose --help lists advanced options last. Hidden options have no flag, but a setting."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        for parameter in self.params:
            # One line says it for all.
            parameter.show_envvar = False  # type: ignore[attr-defined]
        for parameter in self.without_flag:
            parameter.add_to_parser = lambda parser, context: None

    @property
    def without_flag(self) -> list[Any]:
        return [each for each in self.params if getattr(each, "hidden", False)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], ADVANCED: []}
        for parameter in self.get_params(ctx):
            if (shown := parameter.get_help_record(ctx)) is not None:
                is_argument = parameter.param_type_name == "argument"
                panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
                sections[panel].append(shown)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        names = ", ".join(field_of(each.opts[0]) for each in self.without_flag)
        more = f" Settings without a flag: {names}." if names else ""
        first = next((each for each in self.params if each.param_type_name == "option"), None)
        if first is None:
            return
        example = f"PACELINE_{self.name}_{field_of(first.opts[0])}".upper()
        text = f"Defaults come from {TOML_FILE}, table [{self.name}], and variables such as {example}.{more}"
        formatter.write_paragraph()
        formatter.write_text(text)


def field_of(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def run(main: Coroutine[Any, Any, T]) -> T:
    with naming_the_flag():
        return asyncio.run(main)


@contextlib.contextmanager
def naming_the_flag() -> Iterator[None]:
    """Names the flag that may help if no coordinator answers or it refuses the key."""
    try:
        yield
    except Unauthenticated as error:
        raise Unauthenticated(f"{error} (set a key with --api-key-file FILE or ${ENVIRONMENT})") from None
    except Unreachable as error:
        hint = (
            f"is `paceline up` running? --address sets another address, --tls-ca or ${TLS_ENVIRONMENT.ca} turns on TLS"
        )
        raise Unavailable(f"{error} ({hint})") from None
