"""Services without a collector, without OpenTelemetry, or not asked for traces serve as ever; and what the library is told."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from paceline.errors import ConfigError
from paceline.observability.otlp import OtlpSpans
from paceline.observability.traces import traced
from tests.certificates import Authority
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.hosted import Host, RefusedStart
from tests.observability.collector import Collector
from tests.services import Trio, free_port

pytestmark = pytest.mark.slow

BODY = {
    "prompt": "t5 t9 t30 t2", "max_tokens": 40, "temperature": 1, "seed": 3, "ignore_eos": True,
    "speculation": {"drafter": "model", "num_speculative_tokens": 4},
}  # fmt: skip
# How long the end of a service may take in which nothing runs; the library's own bound would be 30 s.
END_S = 5.0


def ask(host: Host, trio: Trio, *flags: str) -> str:
    """An answer through a gateway of its own, which is stopped again."""
    listen = f"127.0.0.1:{free_port()}"
    gateway = host.start("gateway", "--listen", listen, "--coordinators", trio.address, *flags)
    response = httpx2.post(f"http://{listen}/v1/completions", json=BODY, timeout=60)
    assert response.status_code == 200, response.text
    started_s = time.monotonic()
    gateway.stop()
    assert time.monotonic() - started_s < END_S
    return str(response.json()["choices"][0]["text"])


@pytest.fixture(params=["away", "silent"])
def no_collector(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address at which nobody listens, or nobody answers."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        if request.param == "silent":
            taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_without_its_collector_a_service_answers_and_ends_as_ever(
    no_collector: str, host: Host, unlike_trio: Trio
) -> None:
    traces = ("--traces", no_collector)
    before = len(unlike_trio.coordinator.log.read_text())
    trio = host.start_trio((*UNLIKE_TARGET, *traces), (*UNLIKE_DRAFT, *traces), traces)
    assert ask(host, trio, *traces) == ask(host, unlike_trio)
    for service in (trio.coordinator, trio.target, trio.draft):
        started_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - started_s < END_S
    # All of them share this process, and its log.
    said = trio.coordinator.log.read_text()[before:]
    lines = [line for line in said.splitlines() if re.search("traces: |xport|Queue full|shutdown", line)]
    assert len(lines) <= 1, lines


def test_a_collector_that_is_away_is_told_of_once_and_waited_for_a_moment(
    no_collector: str, caplog: pytest.LogCaptureFixture
) -> None:
    spans = OtlpSpans(f"http://{no_collector}", "test")
    started_s = time.monotonic()
    for _ in range(10_000):
        spans.start("request").end()
        assert time.monotonic() - started_s < 5.0, "nobody waits for a collector"
    started_s = time.monotonic()
    spans.close()
    assert time.monotonic() - started_s < 3.0
    assert len([record for record in caplog.records if record.getMessage().startswith("traces: ")]) <= 1


@pytest.fixture
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A process without OpenTelemetry that records attempts to import it."""
    (tmp_path / "opentelemetry.py").write_text(
        f"open({str(tmp_path / 'looked-for')!r}, 'w').close()\n"
        "raise ModuleNotFoundError(\"No module named 'opentelemetry'\")\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host = Host(tmp_path)
    yield host
    host.close()


def test_services_need_opentelemetry_for_traces_and_for_nothing_else(
    bare_host: Host, tmp_path: Path, host: Host, unlike_trio: Trio
) -> None:
    trio = bare_host.start_trio(UNLIKE_TARGET, UNLIKE_DRAFT)
    assert ask(bare_host, trio) == ask(host, unlike_trio)
    assert not (tmp_path / "looked-for").exists()
    flags = {
        "draft_server": UNLIKE_DRAFT, "target_server": UNLIKE_TARGET, "gateway": (),
        "coordinator": ("--draft", trio.draft.address, "--target", trio.target.address),
    }  # fmt: skip
    for module, own in flags.items():
        with pytest.raises(RefusedStart, match=r"ConfigError: --traces needs .* pip install 'paceline\[otel\]'"):
            bare_host.start(module, *own, "--traces", "127.0.0.1:4317")


def test_opentelemetrys_own_variables_hold_and_https_means_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = Authority(tmp_path / "authority").issue("both")
    # It asks for its clients' certificate.
    collector = Collector(issued.tls.server_credentials())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(issued.ca))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(issued.cert))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(issued.key))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ours")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "renamed")
    with traced(f"https://{collector.address}", "test") as spans:
        spans.start("sent").end()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with traced(f"https://{collector.address}", "test") as spans:
        spans.start("left out").end()
        spans.start("asked for", f"00-{'1' * 32}-{'2' * 16}-01").end()
    collector.close()
    assert [(span.service, span.name) for span in collector.spans] == [("renamed", "sent"), ("renamed", "asked for")]
    assert {metadata["x-tenant"] for metadata in collector.metadata} == {"ours"}


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_EXPORTER_OTLP_COMPRESSION", "much"), ("OTEL_BSP_SCHEDULE_DELAY", "0")]
)
def test_what_opentelemetry_is_told_wrong_ends_a_service_by_a_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"--traces http://127\.0\.0\.1:4317: "):
        OtlpSpans("http://127.0.0.1:4317", "test")
