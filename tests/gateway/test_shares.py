"""What one key may take of a gateway."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.errors import Errors
from gateway.middleware import AdmissionMiddleware
from gateway.telemetry import GatewayMetrics
from paceline.keys import KeyRing, make_key


async def test_a_key_with_all_places_leaves_others_their_shares(tmp_path: Path) -> None:
    keys = {name: make_key(tmp_path / "keys", name) for name in ("a", "b")}
    may_end, num_inside = asyncio.Event(), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal num_inside
        num_inside += 1
        await may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = AdmissionMiddleware(app, KeyRing(tmp_path / "keys"), 4, None, (), lambda scope: Errors(), GatewayMetrics())
    transport = httpx2.ASGITransport(guard)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:

        async def ask(name: str) -> int:
            return (await http.get("/v1/models", headers={"authorization": f"Bearer {keys[name]}"})).status_code

        held = [asyncio.create_task(ask("a")) for _ in range(4)]
        while num_inside < 4:
            await asyncio.sleep(0)
        assert await ask("a") == 429
        held += [asyncio.create_task(ask("b")) for _ in range(2)]
        while num_inside < 6:
            await asyncio.sleep(0)
        assert [await ask(name) for name in "ab"] == [429, 429]
        assert (await http.get("/v1/models")).status_code == 401
        may_end.set()
        assert await asyncio.gather(*held) == [200] * 6
        assert await ask("a") == 200


@pytest.mark.parametrize(("num_prompts", "n", "most"), [(34, 59, 7), (256, 2, 1), (34, 8, 7)])
async def test_samples_of_all_prompts_are_bounded_together(
    http: httpx2.AsyncClient, num_prompts: int, n: int, most: int
) -> None:
    refused = await http.post("/v1/completions", json={"prompt": ["t1"] * num_prompts, "n": n, "max_tokens": 1})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "n")
    assert f"n is {n} for each of {num_prompts} prompts; it must be at most {most}" in error["message"]
