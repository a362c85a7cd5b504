"""`paceline key`: makes an API key."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.keys import make_key


def key(
    name: Annotated[str, typer.Argument(help="whose key it is: 1 to 64 of the characters A-Z a-z 0-9 . _ -")],
    file: Annotated[Path, typer.Option(help="the file of keys, to which NAME and the key's hash are appended")],
) -> None:
    """Makes an API key and prints it, this once: the file keeps its hash alone.

    A coordinator with --api-keys FILE knows the key within a second. To revoke a key, delete its line.
    """
    print(make_key(file, name))
    print(f"{file} has the hash of the key of {name}; nothing can show the key again", file=sys.stderr)
