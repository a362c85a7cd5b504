"""Draft and target servers for raw streams: one of each, and one of each that caches no prefixes, to compare."""

import pytest

from tests.conftest import TINY
from tests.hosted import Host, HostedService


@pytest.fixture(scope="session")
def draft_server(host: Host) -> HostedService:
    return host.start("draft_server", *TINY)


@pytest.fixture(scope="session")
def target_server(host: Host) -> HostedService:
    return host.start("target_server", *TINY)


@pytest.fixture(scope="session")
def uncached_draft_server(host: Host) -> HostedService:
    return host.start("draft_server", *TINY, "--no-prefix-caching")


@pytest.fixture(scope="session")
def uncached_target_server(host: Host) -> HostedService:
    return host.start("target_server", *TINY, "--no-prefix-caching")
