"""What nobody foresaw: a fault of ours is answered, logged and counted as any request; a client that leaves is none."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from gateway.app import make_app
from gateway.config import GatewaySettings
from gateway.router import Coordinators

ORIGIN = "https://chat.example"
BODY = {"prompt": "t1"}


@pytest.fixture
async def app() -> AsyncIterator[Starlette]:
    """In this process, with nobody behind it."""
    app = make_app(GatewaySettings(coordinators="127.0.0.1:1", allowed_origins=ORIGIN))
    async with app.router.lifespan_context(app):
        yield app


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/completions"), ("GET", "/v1/models")])
async def test_a_fault_is_answered_logged_and_counted(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    async def fail(self: Coordinators, key: str | None) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Coordinators, "describe", fail)
    caplog.set_level(logging.INFO)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
        headers = {"origin": ORIGIN, "x-request-id": "mine"}
        response = await http.request(method, path, json=BODY, headers=headers)
        exposed = (await http.get("/metrics")).text
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert response.headers["x-request-id"] == "mine"
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert f'paceline_gateway_requests_total{{path="{path}",status="500"}} 1.0' in exposed
    assert "a fault of ours" in caplog.text
    assert any(getattr(each, "fields", {}).get("status") == 500 for each in caplog.records)


async def test_a_client_that_goes_away_while_it_sends_is_no_fault(
    app: Starlette, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [{"type": "http.request", "body": b'{"pro', "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "scheme": "http", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    await app(scope, receive, send)
    assert sent == []
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
