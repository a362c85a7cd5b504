"""Draft and target servers for raw streams: one of each, and one of each that caches no prefixes, to compare."""

from collections.abc import Iterator

import pytest

from tests.conftest import PARALLEL_DRAFT, TINY
from tests.hosted import Host, HostedService
from tests.serving.raw_session import RawSession


@pytest.fixture(scope="session")
def draft_server(host: Host) -> HostedService:
    return host.start("draft_server", *TINY)


@pytest.fixture
def draft(draft_server: HostedService) -> Iterator[RawSession]:
    session = RawSession(draft_server)
    yield session
    session.close()


@pytest.fixture(scope="session")
def target_server(host: Host) -> HostedService:
    return host.start("target_server", *TINY)


@pytest.fixture
def target(target_server: HostedService) -> Iterator[RawSession]:
    session = RawSession(target_server)
    yield session
    session.close()


@pytest.fixture(scope="session")
def uncached_draft_server(host: Host) -> HostedService:
    return host.start("draft_server", *TINY, "--no-prefix-caching")


@pytest.fixture(scope="session")
def uncached_target_server(host: Host) -> HostedService:
    return host.start("target_server", *TINY, "--no-prefix-caching")


@pytest.fixture(scope="session")
def parallel_draft_server(host: Host) -> HostedService:
    """Proposes all tokens in one forward pass. Of a prompt of 200 tokens the last of four rows that draft is in a step alone."""
    return host.start("draft_server", *PARALLEL_DRAFT, "--max-num-batched-tokens", "101")


@pytest.fixture(scope="session")
def small_step_draft_server(host: Host) -> HostedService:
    """Of a prompt of 60 tokens and its guesses the second step feeds some of the guesses, the third the rest."""
    return host.start("draft_server", *TINY, "--max-num-batched-tokens", "32", "--no-prefix-caching")
