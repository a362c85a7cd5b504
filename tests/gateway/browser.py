"""A browser without a window, and a gateway process for its pages."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.services import START_TIMEOUT_S, Service, running, spawn_service


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """The system's Chromium, else playwright's own. Raises playwright's Error where there is neither."""
    # Chromium's sandbox refuses to serve root.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        yield browser
        browser.close()


@dataclass(slots=True)
class GatewayProcess:
    """One gateway, and where its page is."""

    service: Service
    url: str


@contextlib.contextmanager
def run_gateway(folder: Path, coordinator: str, *flags: str) -> Iterator[GatewayProcess]:
    """On a free port. Raises RuntimeError with its log if it does not come to serve."""
    service = spawn_service("gateway", folder, "--coordinators", coordinator, *flags, address="127.0.0.1:0")
    with running(service):
        yield GatewayProcess(service, _find_url(service))


def _find_url(service: Service) -> str:
    """From its log, where it says which port it took."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not (found := re.search(r"listening on (http://\S+)", service.log.read_text())):
        if service.process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the gateway did not start:\n{service.log.read_text()}")
        time.sleep(0.05)
    return found[1]
