"""Shared services, started once a session: in one process together, or each in one of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch is imported by any test: one team of threads, as in the servers.
from paceline.prompts import read_prompts
from paceline.serving.main import prepare_process
from tests.hosted import Host
from tests.services import Trio, start_trio

prepare_process()
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TINY = (
    "--model",
    "dummy:tiny",
    "--dtype",
    "float32",
    "--kv-cache-memory",
    "16MiB",
    "--block-size",
    "16",
    "--threads",
    "1",
    "--check-integrity",
    "--quantization",
    "none",
)


# Two models over 32 ids: so few that transformers can say what must come.
SMALL_FLAGS = (
    "--dtype", "float32", "--quantization", "none", "--kv-cache-memory", "16MiB", "--block-size", "16", "--threads", "1",
)  # fmt: skip
UNLIKE_TARGET = ("--model", "dummy:tiny-32-a", *SMALL_FLAGS)
UNLIKE_DRAFT = ("--model", "dummy:tiny-32-b", *SMALL_FLAGS)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One process for all services that need none of their own."""
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


@pytest.fixture(scope="session")
def tiny_trio(host: Host) -> Trio:
    """Three services over a tiny random model, for what does not need real text."""
    return host.trio(TINY, TINY)


@pytest.fixture(scope="session")
def unlike_trio(host: Host) -> Trio:
    """Three services over two models that seldom agree."""
    return host.trio(UNLIKE_TARGET, UNLIKE_DRAFT)


@pytest.fixture(scope="session")
def real_trio(host: Host) -> Trio:
    """Three services over SmolLM2 at float32, the same model as draft and target."""
    flags = ("--model", "smollm2-135m", "--dtype", "float32", "--kv-cache-memory", "1GiB", "--threads", "1")
    flags = (*flags, "--quantization", "none")
    return host.trio(flags, flags)


@pytest.fixture(scope="session")
def embedded_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """What `paceline up` starts: processes, each with a thread for every core."""
    flags = ("--kv-cache-memory", "256MiB", "--max-model-len", "1024", "--check-integrity")
    with start_trio(tmp_path_factory.mktemp("embedded"), flags, flags) as trio:
        yield trio


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """The project's own prompts, first turns."""
    path = Path(__file__).parent / "data" / "prompts.jsonl"
    return [record.text for record in read_prompts("prompts", path)]


# Begun first, so that no worker is left with one of them at the end.
LONGEST_FIRST = ("smollm2", "tests/engine/cuda/test_runner.py", "tests/end_to_end/test_faults.py", "tests/engine/cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`: a file stays together, and those that load SmolLM2's services go to one worker."""
    loading = {"real_trio", "embedded_pair"}
    users = {item.path for item in items if loading & set(getattr(item, "fixturenames", ()))}
    groups = {item: "smollm2" if item.path in users else item.nodeid.partition("::")[0] for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))

    def rank(item: pytest.Item) -> int:
        return next((i for i, start in enumerate(LONGEST_FIRST) if groups[item].startswith(start)), len(LONGEST_FIRST))

    items.sort(key=rank)
