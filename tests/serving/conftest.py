"""Draft and target servers for raw streams: one of each, and one of each that caches no prefixes, to compare."""

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


@pytest.fixture(scope="session")
def uncached_draft_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = start_service("draft_server", tmp_path_factory.mktemp("uncached"), *TINY, "--no-prefix-caching")
    with running(service):
        yield service


@pytest.fixture(scope="session")
def uncached_target_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = start_service("target_server", tmp_path_factory.mktemp("uncached"), *TINY, "--no-prefix-caching")
    with running(service):
        yield service
