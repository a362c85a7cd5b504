"""One draft and one target server, for raw streams."""

from collections.abc import Iterator

import pytest

from tests.conftest import TINY
from tests.services import Service, running, start_service


@pytest.fixture(scope="session")
def draft_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = start_service("draft_server", tmp_path_factory.mktemp("draft"), *TINY)
    with running(service):
        yield service


@pytest.fixture(scope="session")
def target_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = start_service("target_server", tmp_path_factory.mktemp("target"), *TINY)
    with running(service):
        yield service
