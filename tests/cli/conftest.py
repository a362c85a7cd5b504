"""Runs the command line inside the test's process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from paceline.cli import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs `paceline` with these arguments."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["paceline", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        code = exit_info.value.code
        return Ran(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run
