"""The address of a service's metrics."""

from pathlib import Path

import pytest
from prometheus_client import Counter

from coordinator.config import CoordinatorSettings
from gateway.config import GatewaySettings
from paceline.errors import ConfigError
from paceline.observability.exposition import exposed, new_registry
from target_server.config import TargetSettings
from tests.gateway.conftest import free_port
from tests.observability.scrapes import scrape


def test_an_address_is_taken_once_and_is_free_afterwards() -> None:
    registry, listen = new_registry("test"), f"127.0.0.1:{free_port()}"
    counter = Counter("paceline_things", "Things.", registry=registry)
    with exposed(registry, listen, "test"):
        counter.inc(3)
        assert scrape(f"http://{listen}/metrics").value("paceline_things_total") == 3
        with pytest.raises(ConfigError, match=f"--metrics: can't listen on {listen}: "), exposed(registry, listen, "b"):
            pass
    with exposed(registry, listen, "test"):
        assert scrape(f"http://{listen}/metrics").value("paceline_build_info", service="test") == 1


@pytest.mark.parametrize("settings", [CoordinatorSettings, GatewaySettings, TargetSettings])
@pytest.mark.parametrize("address", ["unix:/tmp/socket", "9464", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(
    settings: type, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="metrics"):
        settings(metrics=address)
