"""Logs: one id through all services, lines that machines can read, and nothing of what people wrote."""

import json
import logging
import subprocess
import sys
from typing import Any

import httpx2
import pytest

from paceline.errors import InvalidArgument
from paceline.observability.logs import JsonFormatter, TextFormatter, request_id, with_fields
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.observability.conftest import BY_MODEL, PROMPT, SAMPLED, SECRET, SERVICES, Watched

pytestmark = pytest.mark.slow

ID = "of-a-test 1"


def record(message: str, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelname": "INFO", "name": "here", **with_fields(**fields)})


def test_a_line_is_for_people_or_an_object_and_has_the_requests_id() -> None:
    token = request_id.set("r1")
    try:
        made = record("it is over", end="stop", rounds=3)
        assert TextFormatter().format(made).endswith("INFO it is over request_id=r1 end=stop rounds=3")
        line = json.loads(JsonFormatter().format(made))
    finally:
        request_id.reset(token)
    assert line.pop("time").endswith("Z")
    expected = {
        "level": "info",
        "logger": "here",
        "message": "it is over",
        "request_id": "r1",
        "end": "stop",
        "rounds": 3,
    }
    assert line == expected
    assert "request_id" not in TextFormatter().format(record("a start"))


@pytest.mark.parametrize("value", ["a\nINFO forged", "a end=stop", 'a"b', "x=y", "", "\u2028", "\x1b[31m"])
def test_what_a_client_sends_looks_like_no_other_field_and_no_line(value: str) -> None:
    text = TextFormatter().format(record("over", request_id=value))
    assert text.splitlines() == [text]
    assert json.loads(text.partition("request_id=")[2]) == value
    line = JsonFormatter().format(record("over", request_id=value))
    assert json.loads(line)["request_id"] == value
    assert "\n" not in line


def test_an_exception_is_told_in_the_same_object() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        made = logging.makeLogRecord({"msg": "failed", "exc_info": (type(error), error, error.__traceback__)})
    assert "ValueError: no" in json.loads(JsonFormatter().format(made))["exception"]


def test_a_level_is_for_our_own_logs() -> None:
    program = (
        "import logging, sys\n"
        "from paceline.observability.logs import set_up_logs\n"
        "set_up_logs('text', sys.argv[1])\n"
        "for name in ('coordinator.x', 'numba.x'):\n"
        "    logging.getLogger(name).debug('fine %s', name)\n"
        "    logging.getLogger(name).warning('bad %s', name)\n"
    )

    def said(level: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", program, level], capture_output=True, text=True, check=True)
        return [line.partition(" ")[2].partition(" ")[2] for line in done.stderr.splitlines()]

    ours, theirs = ["DEBUG fine coordinator.x", "WARNING bad coordinator.x"], ["WARNING bad numba.x"]
    assert said("debug") == ours + theirs
    assert said("warning") == ours[1:] + theirs
    assert said("error") == []


async def test_one_id_goes_through_all_services(watched: Watched) -> None:
    body = {"prompt": PROMPT, "max_tokens": 30, "temperature": 1, "seed": 3, "ignore_eos": True}
    body["speculation"] = {"drafter": "model", "num_speculative_tokens": 4}
    headers = {"authorization": f"Bearer {watched.key}", "x-request-id": ID}
    async with httpx2.AsyncClient(base_url=watched.url, timeout=60) as http:
        response = await http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200
    assert response.headers["x-request-id"] == ID
    assert response.json()["id"] == f"cmpl-{ID}"
    for server in ("draft", "target"):
        assert (await watched.until_logged(server, "sequence opened", request_id=ID))["prompt_tokens"] == 5
    line = await watched.until_logged("coordinator", "generation over", request_id=ID)
    assert (line["caller"], line["end"], line["sources"]) == ("alice", "length", "model")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (5, 30)
    figures = response.json()["paceline"]["speculation"]
    assert {name: line[name] for name in ("rounds", "proposed", "accepted")}.items() <= figures.items()
    assert 0 < line["accepted"] < line["proposed"]
    assert line["acceptance_length"] == pytest.approx(29 / line["rounds"], abs=0.01)
    assert 0 <= line["first_token_ms"] <= line["total_ms"]
    line = await watched.until_logged("gateway", "request over", request_id=ID)
    assert (line["caller"], line["method"], line["path"]) == ("alice", "POST", "/v1/completions")
    assert line["status"] == 200


async def test_an_id_in_the_body_goes_before_one_in_the_headers_and_one_is_always_there(watched: Watched) -> None:
    body = {"prompt": PROMPT, "max_tokens": 2, "request_id": "ünlike"}
    async with httpx2.AsyncClient(base_url=watched.url, timeout=60) as http:
        http.headers["authorization"] = f"Bearer {watched.key}"
        named = await http.post("/v1/completions", json=body, headers={"x-request-id": "other"})
        assert named.headers["x-request-id"] == "%C3%BCnlike"
        await watched.until_logged("gateway", "request over", request_id="ünlike")
        await watched.until_logged("coordinator", "generation over", request_id="ünlike")
        streamed = await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2, "stream": True})
        await watched.until_logged("coordinator", "generation over", request_id=streamed.headers["x-request-id"])
        failed = await http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": -5})
        assert failed.status_code == 400
        await watched.until_logged("gateway", "request over", request_id=failed.headers["x-request-id"], status=400)
        for bad in ("x" * 257, "a\tb"):
            refused = await http.post("/v1/completions", json=body, headers={"x-request-id": bad})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-request-id")


async def test_a_request_that_is_refused_or_given_up_has_a_line_too(watched: Watched) -> None:
    async with watched.client() as client:
        with pytest.raises(InvalidArgument):
            await client.complete([10_000], SAMPLED, request_id="refused 1")
        line = await watched.until_logged("coordinator", "request refused", request_id="refused 1")
        assert (line["code"], line["caller"]) == ("invalid_argument", "alice")
        long = SamplingParams(max_tokens=400, ignore_eos=True)
        async for _ in client.stream(PROMPT, long, BY_MODEL, request_id="given up"):
            break
    line = await watched.until_logged("coordinator", "generation over", request_id="given up")
    assert line["end"] == "cancelled"


async def test_no_log_repeats_a_prompt_an_answer_or_a_key(watched: Watched) -> None:
    texts = [PROMPT, SECRET, "t5 t9", "5, 9, 30", watched.key, watched.wrong_key]
    async with watched.client() as client, watched.client(watched.wrong_key) as stranger:
        for speculation in (BY_MODEL, SpeculationParams(enabled=False)):
            done = await client.complete(PROMPT, SAMPLED, speculation, trace=True, prediction=SECRET)
            texts += [done.text, str(done.token_ids)[1:-1]]
        with pytest.raises(InvalidArgument):
            await client.complete(f"{SECRET} " * 10_000, SAMPLED)
        with pytest.raises(Exception, match="key"):
            await stranger.complete(PROMPT, SAMPLED)
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    async with httpx2.AsyncClient(base_url=watched.url, timeout=60) as http:
        for key in (watched.key, watched.wrong_key):
            headers = {"authorization": f"Bearer {key}", "x-request-id": "the last"}
            for body in (
                chat, {**chat, "stream": True}, {**chat, "model": SECRET}, {**chat, SECRET: SECRET}, [SECRET],
                {**chat, "stop": [SECRET] * 100}, {**chat, "chat_template_kwargs": {SECRET: SECRET}},
            ):  # fmt: skip
                await http.post(f"/v1/chat/completions?prompt={SECRET}", json=body, headers=headers)
    await watched.until_logged("gateway", "request over", request_id="the last", status=401)
    said = "".join(watched.log(service) for service in SERVICES)
    assert [text for text in texts if text in said] == []
    assert "alice" in said


def test_a_coordinator_says_what_was_found_of_its_chat_template(watched: Watched) -> None:
    said = [line["message"] for line in watched.lines("coordinator")]
    assert "coordinator: chat template: reasoning none; calls as hermes" in said


@pytest.mark.parametrize("service", SERVICES)
def test_every_line_of_a_service_is_an_object_with_the_same_beginning(watched: Watched, service: str) -> None:
    lines = watched.lines(service)
    assert len(lines) >= 2
    for line in lines:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert line["level"] in ("info", "warning"), line
