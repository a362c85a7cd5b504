import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.keys import make_key


def key(
    name: Annotated[str, typer.Argument(help="name of the key: 1 to 64 of the characters A-Z a-z 0-9 . _ -")],
    file: Annotated[Path, typer.Option(help="key file to append NAME and the key's hash to")],
) -> None:
    """Creates an API key and prints it once; the file stores only its hash.

    A coordinator with --api-keys FILE accepts the key within a second. To revoke a key, delete its line.
    """
    print(make_key(file, name))
    print(f"added the key of {name} to {file}; the key is not shown again", file=sys.stderr)
