"""The `paceline` command, one file a subcommand."""

import sys
from typing import Any

import typer

from paceline.cli import bench, chat, demo, distill, generate, plan, up
from paceline.errors import ConfigError, InvalidArgument, PacelineError
from paceline.settings import TOML_FILE, read_toml

app = typer.Typer(
    name="paceline",
    help=f"Speculative decoding as services. Settings: flags > environment PACELINE_* > {TOML_FILE} > defaults.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(name="up")(up.up)
app.command(name="generate")(generate.generate)
app.command(name="chat")(chat.chat)
app.command(name="demo")(demo.demo)
app.command(name="plan")(plan.plan)
app.command(name="bench")(bench.bench)
app.command(name="distill")(distill.distill)


# Tables of paceline.toml that are a process's own, not a command's.
SERVICE_TABLES = ("draft", "target", "coordinator")


def default_map(group: Any, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """paceline.toml's tables as defaults of the commands' parameters. Raises ConfigError for a name that nobody knows."""
    defaults: dict[str, dict[str, Any]] = {}
    for table, values in tables.items():
        if table in SERVICE_TABLES:
            continue
        if table not in group.commands:
            known = ", ".join((*SERVICE_TABLES, *group.commands))
            raise ConfigError(f"{TOML_FILE}: there is no table [{table}]; there are {known}")
        names = {
            option.lstrip("-").replace("-", "_"): parameter.name
            for parameter in group.commands[table].params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("--")
        }
        for name in values:
            if name.replace("-", "_") not in names:
                raise ConfigError(f"{TOML_FILE}, table [{table}]: `paceline {table}` has no option {name!r}")
        defaults[table] = {names[name.replace("-", "_")]: value for name, value in values.items()}
    return defaults


def main() -> None:
    """Runs the command line: exit 2 for bad usage, 1 for a failed run, 130 on Ctrl-C."""
    try:
        command = typer.main.get_command(app)
        command(auto_envvar_prefix="PACELINE", default_map=default_map(command, read_toml()), standalone_mode=True)
    except InvalidArgument as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
