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
from paceline.cli import bench, chat, demo, distill, generate, key, plan, up
from paceline.errors import ConfigError, InvalidArgument, PacelineError
from paceline.settings import TOML_FILE, read_toml

# \b: the lines that follow stay as they are.
EPILOG = f"""
Settings: flags > environment PACELINE_* > {TOML_FILE} > defaults; see docs/server.md. A {TOML_FILE} in the working
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
    # Plain help: tables with frames cut long names of options.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _at_home(command: Callable[..., None]) -> Callable[..., None]:
    """Wraps a command such that `~` in its paths is the user's home, which a shell says for some of the flags alone."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        paths = {name: Path(os.path.expanduser(value)) for name, value in given.items() if isinstance(value, Path)}
        command(**given | paths)

    return run


# What a list of commands says, short enough for 80 columns.
for _command, _short_help in (
    (up.up, "Starts the services on this machine."),
    (generate.generate, "Streams text: one PROMPT, or a file of them."),
    (chat.chat, "Talks with the target model."),
    (demo.demo, "Shows and times speculation, from nothing."),
    (plan.plan, "Says whether to speculate, and how far."),
    (bench.bench, "Measures coordinators under load."),
    (key.key, "Makes an API key."),
    (distill.distill, "Makes a small draft for a target."),
):
    app.command(name=_command.__name__, short_help=_short_help)(_at_home(_command))


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


# What a file says that takes no more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Tables of paceline.toml that are a process's own, not a command's.
SERVICE_TABLES = ("draft", "target", "coordinator", "gateway")


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
    """Names an option's environment variable after its flag, where it would bear another name of the parameter."""
    for name, command in group.commands.items():
        for parameter in command.params:
            fields = [field_of(option) for option in parameter.opts if option.startswith("--")]
            if fields and fields[0] != parameter.name:
                parameter.envvar = f"PACELINE_{name}_{fields[0]}".upper()


def field_of(flag: str) -> str:
    """`--max-tokens` as paceline.toml writes it: `max_tokens`."""
    return flag.lstrip("-").replace("-", "_")


def main() -> None:
    """Runs the command line: exit 2 for bad usage, 1 for a failed run, 130 on Ctrl-C."""
    closed = _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the encoding lacks is shown as "?".
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
        # Not as the interpreter ends, which could but complain.
        sys.stdout.flush()
    except TyperException as error:
        said = error.format_message().rstrip(".")
        _fail(f"{said}{_about_dashes(error, command)}; see `{help_command(command.commands)}`", 2)
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
    """Which help belongs to this process's command line."""
    words = ["paceline", *(word for word in sys.argv[1:2] if word in commands), "--help"]
    return " ".join(words)


def _about_dashes(error: TyperException, group: Any) -> str:
    """How to give an argument that begins with -, if an unknown option may be one; else empty."""
    command = group.commands.get("".join(sys.argv[1:2]))
    if command is None or getattr(error, "possibilities", True):
        return ""
    names = [each.name.upper() for each in command.params if each.param_type_name == "argument"]
    return f"; put -- before a {names[0]} that begins with -" if names else ""


def _open_closed_streams() -> list[str]:
    """Opens standard streams that are closed: stdin and stdout fail when they are used, stderr takes everything.

    Otherwise a socket may get the number of a closed stream, and what is printed to a closed stderr goes to stdout.
    Returns the names of those that were closed.
    """
    streams = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    closed = [each for each in streams if getattr(sys, each[0]) is None]
    for name, mode, flags in closed:
        setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: SIM115 - open until the process ends
    return [name for name, _, _ in closed]


def _drop_output() -> None:
    """What is still to be written to stdout goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _fail(said: str, status: int) -> NoReturn:
    print("error:", " ".join(said.split()), file=sys.stderr)
    sys.exit(status)
