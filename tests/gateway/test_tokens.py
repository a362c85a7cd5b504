"""What tokens are called, where more of them must be named than a coordinator names at once."""

from typing import Any

import httpx2
import pytest

from tests.conftest import TINY
from tests.gateway.conftest import StartGateway
from tests.hosted import Host

MODEL_LEN = 64
SHORT = (*TINY, "--max-model-len", str(MODEL_LEN))
IDS = list(range(100, 140))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": IDS, "echo": True, "logprobs": 20, "max_tokens": 0}),
        ("/tokenize", {"prompt": " ".join(f"t{number}" for number in range(2 * MODEL_LEN)), "return_token_strs": True}),
    ],
)
async def test_more_tokens_are_named_than_the_model_takes(
    start_gateway: StartGateway, host: Host, path: str, body: dict[str, Any]
) -> None:
    gateway_service = start_gateway(host.trio(SHORT, SHORT))
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    if path == "/tokenize":
        assert len(found["token_strs"]) == found["count"] > MODEL_LEN
    else:
        likeliest = found["choices"][0]["logprobs"]["top_logprobs"]
        assert len(set().union(*likeliest[1:])) > MODEL_LEN
