"""What the terminal shows while requests run."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from paceline.loadtest.record import Record


class LiveProgress:
    """A bar on stderr, only on a terminal; a context manager."""

    def __init__(self, total: int | None) -> None:
        """`total`: requests of the whole run, warm-ups included; None where only time ends it."""
        console = Console(stderr=True)
        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("requests, {task.fields[tokens]} tokens[red]{task.fields[failed]}[/red]"), TimeElapsedColumn(),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=total, tokens=0, failed="")
        self._tokens = 0
        self._failed = 0

    def __enter__(self) -> "LiveProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show_load(self, label: str) -> None:
        """Which load is on."""
        self._progress.update(self._task, description=label)

    def count(self, record: Record) -> None:
        """Another request is done."""
        self._tokens += record.tokens
        self._failed += not record.is_ok
        failed = f", {self._failed} failed" if self._failed else ""
        self._progress.update(self._task, advance=1, tokens=self._tokens, failed=failed)
