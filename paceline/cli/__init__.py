"""The `paceline` command, one file a subcommand."""

import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import Abort, TyperException

import paceline
from paceline.cli import bench, chat, chat_template, demo, distill, generate, key, models, plan, up
from paceline.cli.command import Command, field_of
from paceline.cli.printing import VISIBLE
from paceline.errors import ConfigError, InvalidArgument, PacelineError
from paceline.settings import TOML_FILE, read_toml

# \b: the lines that follow stay as they are.
EPILOG = f"""
Settings: flags > environment PACELINE_* > {TOML_FILE} > defaults (docs/server.md). {TOML_FILE} in the working
directory has a table for each command and service:

\b
[generate]
max_tokens = 200
stats = true
"""

app = typer.Typer(
    name="paceline",
    epilog=EPILOG,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    # Plain help: Rich's framed tables cut long option names.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _at_home(command: Callable[..., None]) -> Callable[..., None]:
    """Expands `~` in a command's paths: shells expand it in some flags only."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        paths = {name: Path(os.path.expanduser(value)) for name, value in given.items() if isinstance(value, Path)}
        command(**given | paths)

    return run


# Short enough for a list of commands in 80 columns.
for _command, _short_help in (
    (up.up, "Starts the services on this machine."),
    (generate.generate, "Streams text: one PROMPT, or a file of them."),
    (chat.chat, "Talks with the target model."),
    (chat_template.chat_template, "Shows what a model's chat template does."),
    (models.pull, "Fetches models by name."),
    (models.models, "Lists the models known by name."),
    (demo.demo, "Shows and times speculation, from nothing."),
    (plan.plan, "Says whether to speculate, and how far."),
    (bench.bench, "Measures coordinators under load."),
    (key.key, "Makes an API key."),
    (distill.distill, "Makes a small draft for a target."),
):
    app.command(name=_command.__name__.replace("_", "-"), cls=Command, short_help=_short_help)(_at_home(_command))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"paceline {paceline.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    # Not from the environment: PACELINE_VERSION would end every command.
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, allow_from_autoenv=False, help="print the version"
        ),
    ] = False,
) -> None:
    """Speculative decoding as services."""
    if context.invoked_subcommand is None:
        print(context.get_help())


# Errors of a file that is full.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Tables of paceline.toml that are a process's own, not a command's.
SERVICE_TABLES = ("draft", "target", "coordinator", "gateway")


def default_map(group: Any, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Makes paceline.toml's tables the parameters' defaults. Raises ConfigError for unknown names."""
    defaults: dict[str, dict[str, Any]] = {}
    for table, values in tables.items():
        if table in SERVICE_TABLES:
            continue
        if table not in group.commands:
            known = ", ".join((*SERVICE_TABLES, *group.commands))
            raise ConfigError(f"{TOML_FILE}: unknown table [{table}]; known are {known}")
        names = {
            field_of(option): parameter.name
            for parameter in group.commands[table].params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("--")
        }
        for name in values:
            if name.replace("-", "_") not in names:
                raise ConfigError(f"{TOML_FILE}, table [{table}]: `paceline {table}` has no option {name!r}")
        defaults[table] = {names[name.replace("-", "_")]: value for name, value in values.items()}
    return defaults


def name_variables(group: Any) -> None:
    for name, command in group.commands.items():
        for parameter in command.params:
            fields = [field_of(option) for option in parameter.opts if option.startswith("--")]
            if fields and fields[0] != parameter.name:
                parameter.envvar = f"PACELINE_{name}_{fields[0]}".upper()


def main() -> None:
    """Runs the command line: exit 2 for bad usage, 1 for a failed run, 130 on Ctrl-C."""
    closed = _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Show a character that the encoding lacks as "?".
            stream.reconfigure(errors="replace")
    try:
        command: Any = typer.main.get_command(app)
        name_variables(command)
        try:
            defaults = default_map(command, read_toml())
        except ConfigError as error:
            _fail(str(error), 2)
        status = command(
            prog_name="paceline", auto_envvar_prefix="PACELINE", default_map=defaults, standalone_mode=False
        )
        # Now: at exit the interpreter could only complain.
        sys.stdout.flush()
    except TyperException as error:
        _fail(f"{_said(error, command)}; see `{help_command(command.commands)}`", 2)
    except InvalidArgument as error:
        _fail(str(error), 2)
    except PacelineError as error:
        _fail(str(error), 1)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EBADF, *FULL):
            raise
        _drop_output()
        if error.errno == errno.EBADF:
            _fail(f"{' and '.join(closed) or 'stdin or stdout'}: {error.strerror}", 1)
        if error.errno in FULL:
            _fail(f"can't write the output: {error.strerror}", 1)
        sys.exit(1)
    except (KeyboardInterrupt, Abort):
        sys.exit(130)
    sys.exit(status or 0)


def help_command(commands: Collection[str]) -> str:
    words = ["paceline", *(word for word in sys.argv[1:2] if word in commands), "--help"]
    return " ".join(words)


def _said(error: TyperException, group: Any) -> str:
    said: str = error.format_message().rstrip(".")
    command = group.commands.get("".join(sys.argv[1:2]))
    if command is None or not hasattr(error, "option_name"):
        return said
    field = field_of(error.option_name)
    if field in (field_of(each.opts[0]) for each in command.without_flag):
        variable = f"PACELINE_{command.name}_{field}".upper()
        return f"{error.option_name} is not a flag: set {field} in {TOML_FILE}, table [{command.name}], or ${variable}"
    names = [each.name.upper() for each in command.params if each.param_type_name == "argument"]
    if names and not getattr(error, "possibilities", None):
        return f"{said}; put -- before a {names[0]} that begins with -"
    return said


def _open_closed_streams() -> list[str]:
    """Opens standard streams that are closed; returns their names.

    Otherwise a socket may get a closed stream's number. stdin and stdout then fail on use; stderr discards.
    """
    streams = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    closed = [each for each in streams if getattr(sys, each[0]) is None]
    for name, mode, flags in closed:
        setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: SIM115 - open until the process ends
    return [name for name, _, _ in closed]


def _drop_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _fail(said: str, status: int) -> NoReturn:
    print("error:", " ".join(said.split()).translate(VISIBLE), file=sys.stderr)
    sys.exit(status)
