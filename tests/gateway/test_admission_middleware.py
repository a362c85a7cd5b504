"""What the gateway refuses before it reads a request: sizes, types, hosts, methods; and how it says so."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from gateway.app import make_app
from gateway.config import GatewaySettings
from paceline.client import AsyncClient
from paceline.keys import make_key
from paceline.sampling_params import SamplingParams
from tests.gateway.conftest import RunningGateway, StartGateway
from tests.services import Trio

BODY: dict[str, Any] = {"prompt": "t1 t2", "max_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = {"prompt": "t1", "max_tokens": 500, "ignore_eos": True, "stream": True}
# Each route by each of its methods, and a file of the page.
SERVED = [
    (method, route.path.replace("{model:path}", "dummy:tiny"))
    for route in make_app(GatewaySettings()).routes
    for method in sorted(getattr(route, "methods", None) or ())
] + [("GET", "/static/page.css")]


async def test_a_body_that_is_too_large_is_refused_and_the_connection_goes_on(
    start_gateway: StartGateway, tiny_trio: Trio
) -> None:
    small = start_gateway(tiny_trio, "--max-body-bytes", "1000")
    async with httpx2.AsyncClient(base_url=small.url) as http:
        for content in ({"prompt": "x" * 2000}, None):
            data = None if content else iter([b'{"prompt": "', b"x" * 2000, b'"}'])
            headers = {"content-type": "application/json"}

            async def parts(data: Any = data) -> Any:
                for part in data:
                    yield part

            sent = (
                http.post("/v1/completions", json=content)
                if content
                else http.post("/v1/completions", content=parts(), headers=headers)
            )
            response = await sent
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "body_too_large"
        assert (await http.post("/v1/completions", json=BODY)).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [(b"{", "application/json", 400), (b"[1]", "application/json", 400), (b'{"prompt": NaN}', "application/json", 400),
     (b"\xff", "application/json", 400), (b"{}", "text/plain", 415), (b"{}", "", 415),
     (b'{"prompt": "\\ud800"}', "application/json", 400), (b"[" * 100_000, "application/json", 400)],
)  # fmt: skip
async def test_what_is_no_json_object_is_refused(
    http: httpx2.AsyncClient, content: bytes, kind: str, status: int
) -> None:
    response = await http.post("/v1/completions", content=content, headers={"content-type": kind})
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("depth", [900, 1000])
@pytest.mark.parametrize("name", ["temperature", "chat_template_kwargs", "stop"])
async def test_a_body_that_is_nested_too_deeply_is_refused(http: httpx2.AsyncClient, name: str, depth: int) -> None:
    value = '{"a":' * depth + "1" + "}" * depth
    content = f'{{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 1, "{name}": {value}}}'
    response = await http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] in ("body", name, "messages"), error


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [("GET", "/v1/nothing", 404, None), ("GET", "/static/nothing", 404, None), ("GET", "/v1/completions", 405, {"POST"}),
     ("POST", "/health", 405, {"GET", "HEAD"}), ("POST", "/static/page.js", 405, {"GET", "HEAD"})],
)  # fmt: skip
async def test_unknown_paths_and_methods_are_told_in_openais_shape(
    http: httpx2.AsyncClient, method: str, path: str, status: int, allowed: set[str] | None
) -> None:
    response = await http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (allowed is not None)
    assert set(response.headers.get("allow", "").split(", ")) == (allowed or {""})


@pytest.mark.parametrize(
    "named",
    ["evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:80", "unix:80", "127.1", "0.0.0.0", "[::]:80",
     "192.168.0.1", ""],
)  # fmt: skip
async def test_a_page_whose_name_points_here_is_not_served(http: httpx2.AsyncClient, named: str) -> None:
    response = await http.get("/v1/models", headers={"host": named})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize(
    "named", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.2:8178", "127.8.8.8", "[::1]", "[::1]:8000"]
)
async def test_all_of_loopback_is_served(http: httpx2.AsyncClient, named: str) -> None:
    assert (await http.get("/v1/models", headers={"host": named})).status_code == 200


async def status_of(named: str, **settings: Any) -> int:
    """Of a request for this host to a gateway with these settings."""
    app = make_app(GatewaySettings(**settings))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
        return (await http.get("/health", headers={"host": named})).status_code


FOREIGN = [
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.1.nip.io",
    "a.b.",
    "evil.arpa",
    "svc.example",
    "",
    "1.2.3.4.5",
]
OWN = ["localhost:8000", "127.0.0.1:8000", "192.168.0.1", "[::1]:8000", "[fe80::1]", "gateway:8000", "LOCALHOST",
       "paceline-gateway.default.svc.cluster.local", "paceline-gateway.default.svc:80", "box.lan", "box.home.arpa", "host.docker.internal:8000", "localhost."]  # fmt: skip


@pytest.mark.parametrize(("named", "status"), [(name, 403) for name in FOREIGN] + [(name, 200) for name in OWN])
async def test_without_keys_no_registered_name_is_served_on_any_address(named: str, status: int) -> None:
    """As compose runs it: all of the container's addresses, published on loopback."""
    assert await status_of(named, listen="0.0.0.0:8000", no_keys=True) == status


async def test_allowed_hosts_are_served(tmp_path: Path) -> None:
    named = {"allowed_hosts": "llm.example, *.lan.example"}
    for settings in ({"listen": "0.0.0.0:8000", "no_keys": True}, {}):
        for host in ("llm.example", "LLM.example:8000", "a.lan.example"):
            assert await status_of(host, **named, **settings) == 200
        for host in ("lan.example", "llm.example.evil.example", ""):
            assert await status_of(host, **named, **settings) == 403
        assert await status_of("evil.example", allowed_hosts="*", **settings) == 200


async def test_with_keys_any_host_is_served(tmp_path: Path) -> None:
    make_key(tmp_path / "keys", "alice")
    assert await status_of("llm.example", listen="0.0.0.0:8000", api_keys=str(tmp_path / "keys")) == 200


ANTHROPIC_BODY = {"messages": [{"role": "user", "content": "t1"}], "max_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "t1"}], "max_tokens": 1},
    "/v1/completions": BODY,
    "/v1/responses": {"input": "t1", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "t1"},
    "/v1/messages": ANTHROPIC_BODY,
    "/v1/messages/count_tokens": ANTHROPIC_BODY,
    "/infill": {"input_prefix": "t1", "n_predict": 1},
    "/tokenize": {"prompt": "t1"},
    "/detokenize": {"tokens": [1]},
}


@pytest.mark.parametrize(("method", "path"), SERVED)
async def test_a_path_is_served_with_and_without_a_slash_at_its_end(
    http: httpx2.AsyncClient, method: str, path: str
) -> None:
    for each in {path, path.rstrip("/") + "/"}:
        response = await http.request(method, each, json=BODIES.get(path))
        # The tiny model does not fill in.
        assert response.status_code == (400 if path == "/infill" else 200), (each, response.text)
        assert response.status_code == 200 or "fill-in-the-middle" in response.text


@pytest.mark.parametrize("path", ["/static", "/static/", "/v1", "/v1/", "//", "/health//", "/v1/completions//"])
async def test_no_path_is_redirected(http: httpx2.AsyncClient, path: str) -> None:
    """A redirect has to name a scheme, and the client's is not known here if a proxy ends TLS."""
    response = await http.get(path)
    assert "location" not in response.headers
    assert response.status_code in (200, 404, 405)


async def test_an_unknown_model_is_not_found_and_names_the_one_that_is(client: openai.OpenAI) -> None:
    def ask() -> None:
        client.completions.create(model="gpt-9", prompt="t1")

    with pytest.raises(openai.NotFoundError) as caught:
        await asyncio.to_thread(ask)
    assert caught.value.code == "model_not_found"
    assert "dummy:tiny" in str(caught.value)


async def test_a_prompt_that_is_too_long_has_the_code_that_clients_look_for(client: openai.OpenAI) -> None:
    def ask() -> None:
        client.completions.create(model="dummy:tiny", prompt=[1] * 600)

    with pytest.raises(openai.BadRequestError) as caught:
        await asyncio.to_thread(ask)
    assert caught.value.code == "context_length_exceeded"


async def test_more_requests_than_the_door_holds_are_told_to_wait_and_openais_client_does(
    start_gateway: StartGateway, tiny_trio: Trio
) -> None:
    narrow = start_gateway(tiny_trio, "--max-open-requests", "1")
    async with httpx2.AsyncClient(base_url=narrow.url, timeout=60) as http:
        async with http.stream("POST", "/v1/completions", json=LONG) as first:
            lines = first.aiter_lines()
            await anext(lines)
            second = await http.post("/v1/completions", json=BODY)
            assert second.status_code == 429
            assert int(second.headers["retry-after"]) >= 1
            patient = openai.AsyncOpenAI(base_url=f"{narrow.url}/v1", api_key="none", max_retries=5)
            waiting = asyncio.create_task(patient.completions.create(model="dummy:tiny", **BODY))
            async for _ in lines:
                pass
        assert (await waiting).choices[0].text
        await patient.close()


async def wait_until_running(client: AsyncClient, count: int) -> None:
    async with asyncio.timeout(30):
        while (await client.describe()).running != count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_goes_away_ends_its_generation(gateway_service: RunningGateway, is_stream: bool) -> None:
    body = {**LONG, "stream": is_stream, "n": 16, "max_tokens": 500}
    async with (
        AsyncClient(gateway_service.trio.address) as grpc,
        httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http,
    ):
        await wait_until_running(grpc, 0)
        call = asyncio.create_task(http.post("/v1/completions", json=body))
        await wait_until_running(grpc, 16)
        call.cancel()
        await wait_until_running(grpc, 0)
        done = await grpc.complete("x", SamplingParams(max_tokens=2, ignore_eos=True))
        assert len(done.token_ids) == 2


async def test_health_and_readiness_differ(
    gateway_service: RunningGateway, start_gateway: StartGateway, tiny_trio: Trio
) -> None:
    alone = start_gateway(tiny_trio, "--coordinators", "127.0.0.1:1")
    async with httpx2.AsyncClient() as http:
        assert (await http.get(f"{gateway_service.url}/ready")).status_code == 200
        assert (await http.get(f"{alone.url}/health")).status_code == 200
        assert (await http.get(f"{alone.url}/ready")).status_code == 503
        gone = await http.post(f"{alone.url}/v1/completions", json=BODY)
        assert gone.status_code == 503
        assert "retry-after" in gone.headers


async def test_a_coordinator_that_is_away_is_passed_over(start_gateway: StartGateway, tiny_trio: Trio) -> None:
    both = start_gateway(tiny_trio, "--coordinators", f"127.0.0.1:1,{tiny_trio.address}")
    async with httpx2.AsyncClient(base_url=both.url) as http:
        for number in range(8):
            response = await http.post("/v1/completions", json={**BODY, "prompt": f"t{number}"})
            assert response.status_code == 200, response.text


async def test_with_keys_nothing_but_health_and_the_pages_own_files_answers_without_one(
    start_gateway: StartGateway, tiny_trio: Trio, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "keys", "alice")
    locked = start_gateway(tiny_trio, "--api-keys", str(tmp_path / "keys"))
    async with httpx2.AsyncClient(base_url=locked.url) as http:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Bearer {key[:-1]}x"},
            {"authorization": "Basic !!"},
        ):
            for method, path in SERVED:
                response = await http.request(method, path, headers=headers)
                is_open = path in ("/health", "/ready", "/") or path.startswith("/static")
                assert (response.status_code == 401) != is_open, (method, path, headers)
                if not is_open and method != "HEAD":
                    error = response.json()["error"]
                    assert error["type"] == "authentication_error"
                    assert error.get("code", "invalid_api_key") == "invalid_api_key"
                    assert response.headers["www-authenticate"] == "Bearer"
        assert (
            await http.post("/v1/completions", json=BODY, headers={"authorization": f"Bearer {key}"})
        ).status_code == 200
        assert (await http.get("/v1/models", headers={"x-api-key": key})).status_code == 200
        assert (await http.get("/v1/models", auth=("anybody", key))).status_code == 200
    assert "caller=alice method=POST path=/v1/completions status=200" in locked.log
    assert key not in locked.log


async def test_a_requests_id_stands_in_the_lines_of_all_services(
    gateway_service: RunningGateway, http: httpx2.AsyncClient
) -> None:
    """As text; tests/observability has JSON."""
    body = {
        **BODY,
        "max_tokens": 8,
        "ignore_eos": True,
        "speculation": {"drafter": "model", "num_speculative_tokens": 2},
    }
    response = await http.post("/v1/completions", json=body, headers={"x-request-id": "as-text"})
    assert response.headers["x-request-id"] == "as-text"
    async with asyncio.timeout(30):
        while (
            "INFO request over request_id=as-text caller=- method=POST path=/v1/completions status=200"
            not in gateway_service.log
        ):
            await asyncio.sleep(0.01)
    assert gateway_service.log.count("INFO sequence opened request_id=as-text") == 2
    assert (
        gateway_service.log.count(
            "INFO generation over request_id=as-text choice=0 caller=- end=length prompt_tokens=2"
        )
        == 1
    )


def test_other_addresses_need_keys_or_an_explicit_no() -> None:
    with pytest.raises(ValueError, match="--no-keys"):
        GatewaySettings(listen="0.0.0.0:8000")
    assert GatewaySettings(listen="0.0.0.0:8000", no_keys=True).no_keys


async def test_pages_of_other_origins_may_call_only_where_they_are_named(
    gateway_service: RunningGateway, start_gateway: StartGateway, tiny_trio: Trio
) -> None:
    friendly = start_gateway(tiny_trio, "--allowed-origins", "https://other.example, https://chat.example")
    asked = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    async with httpx2.AsyncClient() as http:
        preflight = await http.options(f"{friendly.url}/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-origin"] == "https://chat.example"
        refused = await http.options(f"{gateway_service.url}/v1/chat/completions", headers=asked)
        assert "access-control-allow-origin" not in refused.headers
