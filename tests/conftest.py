"""Shared services, started once a session: in one process together, or each in one of its own."""

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# Before torch is imported by any test: one team of threads, as in the servers.
from paceline.prompts import read_prompts
from paceline.serving.main import prepare_process
from tests.hosted import Host
from tests.services import Trio
from tests.telling import FIGURE, Tell

prepare_process()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# No example fails for its time, which others on the machine determine.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")
# CPython 3.11 may fail to parse a module when garbage is collected meanwhile (python/cpython#106905).
gc.disable()

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
# The same weights, and it has vectors for masks: it proposes all tokens in one forward pass.
PARALLEL_DRAFT = ("--model", "dummy:tiny-32-b-masks", *SMALL_FLAGS)


def pytest_collection_finish() -> None:
    """All modules are imported."""
    gc.enable()
    # Two workers of xdist share the cores: a second thread of each would wait for them, busily.
    from paceline.engine.threads import set_num_workers

    set_num_workers(1)


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Takes a figure, which the run prints at its end: what a worker of xdist prints is not seen."""
    return partial(record_property, FIGURE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed"))
    properties = itertools.chain.from_iterable(each.user_properties for each in reports if each.when == "call")
    if figures := [str(value) for name, value in properties if name == FIGURE]:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(figures))


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One process for all services that can share one."""
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
def parallel_trio(host: Host) -> Trio:
    """As `unlike_trio`, but the draft proposes all tokens in one forward pass."""
    return host.trio(UNLIKE_TARGET, PARALLEL_DRAFT)


@pytest.fixture(scope="session")
def real_trio(host: Host) -> Trio:
    """Three services over SmolLM2 at float32, the same model as draft and target."""
    flags = ("--model", "smollm2-135m", "--dtype", "float32", "--kv-cache-memory", "1GiB", "--threads", "1")
    flags = (*flags, "--quantization", "none")
    return host.trio(flags, flags)


@pytest.fixture(scope="session")
def embedded_pair(host: Host) -> Trio:
    """The models of `paceline up`, quantized as there."""
    flags = ("--kv-cache-memory", "256MiB", "--max-model-len", "1024", "--check-integrity", "--threads", "1")
    return host.trio(flags, flags)


@pytest.fixture(scope="session")
def fill_in_trio(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Trio:
    """Three services over a tiny random model with Qwen's fill-in-the-middle tokens."""
    # It imports torch.
    from tests.fill_in import write_fill_in_model

    folder = tmp_path_factory.mktemp("fill_in")
    write_fill_in_model(folder)
    flags = ("--model", str(folder), "--kv-cache-memory", "16MiB")
    return host.trio(flags, flags)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """The project's own prompts, first turns."""
    path = Path(__file__).parent / "data" / "prompts.jsonl"
    return [record.text for record in read_prompts("prompts", path)]


# Files that start the services over SmolLM2 go to one worker of xdist, which starts them once.
SMOLLM2 = {
    "tests/cli/test_measure.py",
    "tests/end_to_end/test_beams.py",
    "tests/end_to_end/test_embedded_draft.py",
    "tests/end_to_end/test_format_beams.py",
    "tests/end_to_end/test_greedy_oracle.py",
    "tests/end_to_end/test_identity.py",
    "tests/end_to_end/test_load.py",
    "tests/end_to_end/test_rounds.py",
    "tests/gateway/test_chat.py",
    "tests/gateway/test_endpoints.py",
}
# Begun first, so that no worker is left with one of them at the end.
LONGEST_FIRST = (
    "smollm2", "tests/distribution", "tests/compose", "tests/distillation", "tests/end_to_end", "tests/engine/cuda", "tests/engine",
)  # fmt: skip


def group_of(nodeid: str) -> str:
    """What must stay together: a file, all files over SmolLM2, or all that look at the same services."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/observability/"):
        return "tests/observability"
    return "smollm2" if file in SMOLLM2 else file


class GroupScheduling(LoadScopeScheduling):
    """xdist's own `loadgroup` groups nothing with this pytest: it writes to a name that pytest reads no more."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        group = group_of(item.nodeid)
        return next((i for i, start in enumerate(LONGEST_FIRST) if group.startswith(start)), len(LONGEST_FIRST))

    items.sort(key=rank)
