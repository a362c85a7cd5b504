"""A slice of a parameter's values for `make test`, all of them for `make test-all`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slice_of(values: Iterable[Any], in_slice: Callable[[Any], bool]) -> list[Any]:
    """Parameters for `parametrize`; those outside the slice are marked slow. A tuple gives several arguments."""
    every = list(values)
    assert any(in_slice(value) for value in every), "an empty slice"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=() if in_slice(value) else pytest.mark.slow
        )
        for value in every
    ]
