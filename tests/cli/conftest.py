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
    """Runs `paceline` with these arguments; keyword arguments are settings in the environment."""

    def run(*arguments: object, **settings: object) -> Ran:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["paceline", *map(str, arguments)])
            for name, value in settings.items():
                patch.setenv(f"PACELINE_{arguments[0]}_{name}".upper(), str(value))
            with pytest.raises(SystemExit) as exit_info:
                main()
        code = exit_info.value.code
        return Ran(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run
