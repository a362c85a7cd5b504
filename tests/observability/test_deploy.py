"""The dashboard, the alerts and the example of a scrape ask for what the services expose."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from paceline.client import Client
from tests.observability.conftest import BY_MODEL, PROMPT, SAMPLED, SERVICES, Watched
from tests.observability.scrapes import Scrape

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/grafana/paceline.json"
PROMETHEUS = ROOT / "deploy/prometheus"
ALERTS = PROMETHEUS / "alerts.yml"
PACKAGE = "prometheus"
# A metric's name, with the labels that it is asked for by.
SELECTOR = re.compile(r"\b((?:paceline|process|vllm)[:_][a-z0-9_]+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)")
# Prometheus's own.
FREE_LABELS = {"job", "instance"}


def dashboard_expressions() -> Iterator[str]:
    document = json.loads(DASHBOARD.read_text())
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def alert_rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    return [*dashboard_expressions(), *(rule["expr"] for rule in alert_rules())]


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Names of metrics, each with the labels of its braces."""
    found = []
    for name, braces in SELECTOR.findall(expression):
        found.append((name, set(re.findall(r"(\w+)\s*[=!]", braces or ""))))
    return found


@pytest.fixture(scope="module")
def scrapes(watched: Watched) -> list[Scrape]:
    """After a few requests: a label is there once it was counted by."""
    with Client(watched.trio.address, watched.key) as client:
        client.complete(PROMPT, SAMPLED, BY_MODEL)
    headers = {"authorization": f"Bearer {watched.key}"}
    body = {"prompt": PROMPT, "max_tokens": 20, "speculation": {"drafter": "model", "num_speculative_tokens": 2}}
    assert httpx2.post(f"{watched.url}/v1/completions", json=body, headers=headers, timeout=60).status_code == 200
    return [watched.scrape(service) for service in SERVICES]


def test_every_metric_that_is_asked_for_is_exposed(scrapes: list[Scrape]) -> None:
    exposed = set().union(*(each.names for each in scrapes))
    asked = {name for expression in expressions() for name, _ in selectors(expression)}
    assert len(asked) > 30
    assert asked - exposed - {"up"} == set()


def test_every_label_that_is_asked_for_is_one_of_its_metric(scrapes: list[Scrape]) -> None:
    for expression in expressions():
        for name, labels in selectors(expression):
            known = {label for each in scrapes for label in each.labels_of(name)}
            assert labels - known - FREE_LABELS == set(), (name, expression)
        grouped = {label.strip() for inside in GROUPING.findall(expression) for label in inside.split(",")}
        known = {label for name, _ in selectors(expression) for each in scrapes for label in each.labels_of(name)}
        assert grouped - known - FREE_LABELS == set(), expression


def test_the_page_on_operations_names_every_metric_and_every_alert(scrapes: list[Scrape]) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    own = {name for each in scrapes for name in each.names if name.startswith(("paceline", "vllm"))}
    plain = {re.sub(r"_(bucket|count|sum)$", "", name) for name in own}
    assert [name for name in sorted(plain) if f"`{name}`" not in page] == []
    assert [rule["alert"] for rule in alert_rules() if f"`{rule['alert']}`" not in page] == []
    named = set(re.findall(r"`((?:paceline|vllm)[:_][a-z0-9_:]+)`", page))
    assert sorted(named - plain) == []


def test_every_alert_says_how_bad_it_is_and_what_to_think() -> None:
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule
        assert rule["annotations"]["summary"].endswith("."), rule


def test_the_dashboard_has_panels_of_different_names_side_by_side() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles) > 20
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


def test_the_example_scrapes_every_service_of_the_compose_file_where_it_exposes() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    assert job["job_name"] == "paceline"
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    exposed = set()
    for name, service in compose.items():
        [address] = [
            value for key, value in service["environment"].items() if key == f"PACELINE_{name.upper()}_METRICS"
        ]
        exposed.add(f"{name}:{address.rpartition(':')[2]}")
        assert not any(port.endswith(":9464") for port in service.get("ports", ())), "not published"
    assert set(job["static_configs"][0]["targets"]) == exposed


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The machine's own, or that of Debian's package, unpacked in a temporary folder."""
    if found := shutil.which("promtool"):
        return found
    if shutil.which("apt-get") is None:
        pytest.skip("there is no promtool, and no apt-get to fetch Debian's package of it")
    folder = tmp_path_factory.mktemp("prometheus")
    done = subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"there is no promtool, and apt-get download {PACKAGE} fails: {done.stderr.strip()[-300:]}")
    [package] = folder.glob("*.deb")
    subprocess.run(["dpkg", "--extract", package, folder / "root"], check=True)
    return str(folder / "root/usr/bin/promtool")


def run_promtool(promtool: str, *arguments: str, text: str = "", folder: Path = PROMETHEUS) -> str:
    done = subprocess.run(
        [promtool, *arguments], cwd=folder, env=os.environ, input=text, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_promtool_finds_nothing_to_say_of_what_a_service_exposes(promtool: str, watched: Watched, service: str) -> None:
    """vLLM's names have colons, which are for recording rules; they are as vLLM has them."""
    text = "".join(line for line in watched.scrape(service).text.splitlines(True) if "vllm:" not in line)
    assert run_promtool(promtool, "check", "metrics", text=text) == ""


def test_promtool_takes_rules_and_configuration(promtool: str) -> None:
    run_promtool(promtool, "check", "rules", ALERTS.name)
    run_promtool(promtool, "check", "config", "prometheus.yml")


def test_alerts_fire_when_they_should_and_only_then(promtool: str) -> None:
    run_promtool(promtool, "test", "rules", "alerts_test.yml", folder=Path(__file__).parent)
