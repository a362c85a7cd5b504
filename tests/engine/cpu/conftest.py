"""How many threads share the work of kernels."""

from collections.abc import Iterator

import pytest
import torch

from paceline.engine.threads import set_num_workers


@pytest.fixture
def two_workers() -> Iterator[None]:
    """Whatever the machine has: sharing among fewer is another path."""
    before = torch.get_num_threads()
    set_num_workers(2)
    yield
    set_num_workers(before)
