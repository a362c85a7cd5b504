"""The `paceline` command, one file a subcommand."""

import sys

import typer

from paceline.cli import bench, chat, demo, distill, generate, plan, up
from paceline.errors import InvalidArgument, PacelineError
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


def main() -> None:
    """Runs the command line: exit 2 for bad usage, 1 for a failed run, 130 on Ctrl-C."""
    try:
        settings = {"auto_envvar_prefix": "PACELINE", "default_map": read_toml("")}
        app(**settings, standalone_mode=True)
    except InvalidArgument as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
