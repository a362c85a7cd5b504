"""One trace tells a request's way through all services, and never a word of its texts."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from gateway.dialects.completions import Completions
from gateway.dialects.dialect import EventStream
from gateway.telemetry import RequestSpans
from paceline.client import AsyncClient
from paceline.errors import InvalidArgument, Unavailable
from paceline.observability.traces import traced
from paceline.rpc.channel import open_channel
from paceline.rpc.generation_messages import make_request
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2_grpc
from tests.gateway.scripted import SERVING, ScriptedGeneration, chunk
from tests.observability.collector import Collector, Received
from tests.observability.conftest import BY_MODEL, PROMPT, SAMPLED, SECRET, Watched

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BODY = {
    "prompt": PROMPT, "max_tokens": 40, "temperature": 1, "seed": 3, "ignore_eos": True,
    "speculation": {"drafter": "model", "num_speculative_tokens": 4},
}  # fmt: skip
# By a request that comes by gRPC: service, span, and the span above it.
BY_GRPC = {
    ("paceline-coordinator", "generate", None),
    ("paceline-coordinator", "queue", "generate"),
    ("paceline-coordinator", "prompt", "generate"),
    ("paceline-coordinator", "decode", "generate"),
    ("paceline-draft", "sequence", "generate"),
    ("paceline-target", "sequence", "generate"),
}
BY_HTTP = BY_GRPC - {("paceline-coordinator", "generate", None)} | {
    ("paceline-gateway", "POST /v1/completions", None),
    ("paceline-coordinator", "generate", "POST /v1/completions"),
}


def new_parent() -> tuple[str, str, str]:
    """Trace id, span id, and what a client says of both."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, f"00-{trace}-{span}-01"


async def post(watched: Watched, body: Any = BODY, key: str | None = None, **headers: str) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key or watched.key}", **headers}
    async with httpx2.AsyncClient(base_url=watched.url, timeout=60) as http:
        return await http.post("/v1/completions", json=body, headers=headers)


async def spans_of(watched: Watched, trace: str, number: int) -> list[Received]:
    return await asyncio.to_thread(watched.collector.wait, number, trace_id=trace)


def tree(spans: list[Received]) -> set[tuple[str, str, str | None]]:
    names = {span.span_id: span.name for span in spans}
    return {(span.service, span.name, names.get(span.parent_id)) for span in spans}


def named(spans: list[Received], name: str, service: str = "") -> Received:
    [found] = [span for span in spans if span.name == name and span.service.endswith(service)]
    return found


async def test_a_request_by_http_is_one_trace_through_all_services(watched: Watched) -> None:
    trace, above, parent = new_parent()
    answer = (await post(watched, traceparent=parent)).json()
    spans = await spans_of(watched, trace, len(BY_HTTP))
    assert (len(spans), tree(spans)) == (len(BY_HTTP), BY_HTTP)
    gateway_span, coordinator_span = named(spans, "POST /v1/completions"), named(spans, "generate")
    assert gateway_span.parent_id == above
    assert gateway_span.kind == coordinator_span.kind == "SPAN_KIND_SERVER"
    assert gateway_span.attributes["http.response.status_code"] == 200
    for span in spans:
        assert span.status == "STATUS_CODE_UNSET"
        assert span.attributes.get("paceline.request_id", answer["id"].removeprefix("cmpl-")) in answer["id"]
    usage, figures = answer["usage"], answer["paceline"]["speculation"]
    assert coordinator_span.attributes["gen_ai.operation.name"] == "text_completion"
    assert coordinator_span.attributes["gen_ai.request.model"] == answer["model"]
    assert coordinator_span.attributes["gen_ai.request.temperature"] == 1
    assert coordinator_span.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert coordinator_span.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 40
    assert coordinator_span.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert coordinator_span.attributes["rpc.response.status_code"] == "OK"
    assert coordinator_span.attributes["paceline.caller"] == "alice"
    decode = named(spans, "decode").attributes
    assert {name: decode[f"paceline.{name}"] for name in ("rounds", "proposed", "accepted")}.items() <= figures.items()
    assert decode["paceline.acceptance_length"] == pytest.approx(figures["mean_acceptance_length"])
    assert decode["paceline.sources"] == ["model"]


async def test_the_page_on_operations_names_every_span_and_every_attribute(watched: Watched) -> None:
    trace, _, parent = new_parent()
    await post(watched, traceparent=parent)
    spans = await spans_of(watched, trace, len(BY_HTTP))
    page = (ROOT / "docs/operations.md").read_text()
    assert [span.name for span in spans if f"`{span.name}`" not in page] == []
    names = {name for span in spans for name in span.attributes}
    # After a family's first name, the last part of a name is enough.
    assert [name for name in names if f"`{name}`" not in page and f"`.{name.split('.', 2)[-1]}`" not in page] == []


async def test_spans_say_when_a_request_was_where(watched: Watched) -> None:
    trace, _, parent = new_parent()
    await post(watched, traceparent=parent)
    spans = await spans_of(watched, trace, len(BY_HTTP))
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        assert span.started_ns <= span.ended_ns
        assert span.parent_id not in by_id or by_id[span.parent_id].started_ns <= span.started_ns
    queue, prompt, decode = (named(spans, name) for name in ("queue", "prompt", "decode"))
    assert decode.ended_ns <= named(spans, "generate").ended_ns
    # Two clocks are compared anew for each of these.
    assert abs(queue.ended_ns - prompt.started_ns) < 1e6 > abs(prompt.ended_ns - decode.started_ns)
    rounds = decode.attributes["paceline.rounds"]
    target, draft = (named(spans, "sequence", service).attributes for service in ("target", "draft"))
    assert target["paceline.jobs"] == rounds + 1
    # The last round may have no use for drafts.
    assert rounds - 1 <= draft["paceline.jobs"] <= rounds
    # The prompt and all tokens but the last, and drafts that were rejected.
    assert target["paceline.read_tokens"] + target["paceline.cached_tokens"] >= 5 + 40 - 1
    coordinator_span = named(spans, "generate").attributes
    assert target["paceline.compute_ms"] == pytest.approx(coordinator_span["paceline.target_ms"])
    assert draft["paceline.compute_ms"] == pytest.approx(coordinator_span["paceline.draft_ms"])
    queued_ms = target["paceline.queued_ms"] + draft["paceline.queued_ms"]
    assert queued_ms == pytest.approx(coordinator_span["paceline.queued_ms"], abs=10)


async def test_a_call_by_grpc_brings_its_trace_as_metadata(watched: Watched) -> None:
    trace, above, parent = new_parent()
    async with open_channel(watched.trio.address) as channel:
        call = generation_pb2_grpc.GenerationStub(channel).Generate(
            make_request(PROMPT, SAMPLED, BY_MODEL, raw=False),
            metadata=(("authorization", f"Bearer {watched.key}"), ("traceparent", parent)),
        )
        async for _ in call:
            pass
    spans = await spans_of(watched, trace, len(BY_GRPC))
    assert tree(spans) == BY_GRPC
    assert named(spans, "generate").parent_id == above
    assert named(spans, "generate").attributes["gen_ai.operation.name"] == "chat"


async def test_the_python_client_brings_it_too(watched: Watched) -> None:
    trace, above, parent = new_parent()
    async with watched.client() as client:
        await client.with_traceparent(parent).complete(PROMPT, SAMPLED, BY_MODEL)
        for bad in ("", "00-1-2-3", parent.upper(), parent + "\n"):
            with pytest.raises(InvalidArgument, match="traceparent is "):
                client.with_traceparent(bad)
    assert named(await spans_of(watched, trace, len(BY_GRPC)), "generate").parent_id == above


@pytest.mark.parametrize("said", ["", "nonsense", f"00-{'0' * 32}-{'1' * 16}-01", "x" * 600])
async def test_a_request_without_a_trace_begins_one(said: str, watched: Watched) -> None:
    name = secrets.token_hex(8)
    await post(watched, {**BODY, "request_id": name}, **({"traceparent": said} if said else {}))
    for _ in range(200):
        [*gateway_spans] = [
            each for each in watched.collector.spans if each.attributes.get("paceline.request_id") == name
        ]
        if found := [each for each in gateway_spans if each.name == "POST /v1/completions"]:
            break
        await asyncio.sleep(0.05)
    assert found[0].parent_id == ""
    assert tree(await spans_of(watched, found[0].trace_id, len(BY_HTTP))) == BY_HTTP


async def test_what_the_caller_does_not_sample_is_not_sent(watched: Watched) -> None:
    unsampled, _, parent = new_parent()
    assert (await post(watched, traceparent=parent[:-2] + "00")).status_code == 200
    # Each service sends in order: by the time that these are there, others would be.
    sampled, _, parent = new_parent()
    await post(watched, traceparent=parent)
    await spans_of(watched, sampled, len(BY_HTTP))
    assert watched.collector.find(trace_id=unsampled) == []


async def test_each_choice_has_phases_of_its_own(watched: Watched) -> None:
    trace, _, parent = new_parent()
    await post(watched, {**BODY, "n": 3}, traceparent=parent)
    spans = await spans_of(watched, trace, 2 + 3 * (len(BY_HTTP) - 2))
    for name in ("queue", "prompt", "decode"):
        assert sorted(span.attributes["paceline.choice"] for span in spans if span.name == name) == [0, 1, 2]
    coordinator_span = named(spans, "generate").attributes
    assert coordinator_span["gen_ai.usage.input_tokens"] == 5
    assert coordinator_span["gen_ai.usage.output_tokens"] == 120
    assert coordinator_span["gen_ai.response.finish_reasons"] == ["length"] * 3


async def test_an_answer_of_one_token_has_no_time_behind_its_prompt(watched: Watched) -> None:
    trace, _, parent = new_parent()
    await post(watched, {**BODY, "max_tokens": 1}, traceparent=parent)
    # The draft model is not asked.
    spans = await spans_of(watched, trace, 5)
    assert tree(spans) == BY_HTTP - {
        ("paceline-coordinator", "decode", "generate"), ("paceline-draft", "sequence", "generate"),
    }  # fmt: skip


async def test_what_failed_says_so_with_its_code(watched: Watched) -> None:
    trace, _, parent = new_parent()
    refused = await post(watched, {**BODY, "prompt": [10_000]}, traceparent=parent)
    assert refused.status_code == 400
    spans = await spans_of(watched, trace, 2)
    for span in spans:
        assert (span.status, span.message) == ("STATUS_CODE_ERROR", "INVALID_ARGUMENT"), span
        assert span.attributes["error.type"] == "INVALID_ARGUMENT"
    assert named(spans, "generate").attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    # Errors of HTTP alone have no gRPC code.
    for body, key, status in (({**BODY, "nobody": 1}, watched.key, 400), (BODY, watched.wrong_key, 401)):
        trace, _, parent = new_parent()
        assert (await post(watched, body, key, traceparent=parent)).status_code == status
        [gateway_span] = await spans_of(watched, trace, 1)
        assert (gateway_span.status, gateway_span.message) == ("STATUS_CODE_ERROR", str(status))
        assert gateway_span.attributes["http.response.status_code"] == status


async def test_an_answer_that_breaks_off_has_failed_though_it_began_well(collector: Collector) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        request = Completions().parse({"prompt": "x", "stream": True}, SERVING)
        generation = ScriptedGeneration(request, [chunk("a"), Unavailable("the coordinator is gone")])
        await EventStream(Completions().reply(generation), Completions(), {}, send).run()

    async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError(SECRET)

    async def ignore(message: Message) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": Completions.path, "scheme": "http", "headers": []}
    with traced(collector.address, "broken-gateway") as spans:
        await RequestSpans(broken, spans, [Completions.path])(scope, Request(scope).receive, ignore)
        with pytest.raises(ValueError, match=SECRET):
            await RequestSpans(faulty, spans, [Completions.path])(scope, Request(scope).receive, ignore)
    broke, failed = await asyncio.to_thread(collector.wait, 2, service="paceline-broken-gateway")
    assert (broke.status, broke.message) == ("STATUS_CODE_ERROR", "UNAVAILABLE")
    assert broke.attributes["http.response.status_code"] == 200
    assert (failed.status, failed.message) == ("STATUS_CODE_ERROR", "500")


async def test_what_its_client_gave_up_is_no_failure_of_ours(watched: Watched) -> None:
    trace, _, parent = new_parent()
    async with watched.client() as client:
        long = SamplingParams(max_tokens=400, ignore_eos=True)
        async for _ in client.with_traceparent(parent).stream(PROMPT, long, BY_MODEL):
            break
    [coordinator_span] = await asyncio.to_thread(watched.collector.wait, 1, trace_id=trace, name="generate")
    spans = await spans_of(watched, trace, 5)
    assert coordinator_span.attributes["rpc.response.status_code"] == "CANCELLED"
    assert coordinator_span.attributes["gen_ai.response.finish_reasons"] == []
    assert {span.status for span in spans} == {"STATUS_CODE_UNSET"}


async def test_no_span_repeats_a_prompt_an_answer_or_a_key(watched: Watched) -> None:
    texts = [PROMPT, SECRET, "t5 t9", "5, 9, 30", watched.key, watched.wrong_key]
    async with watched.client() as client, AsyncClient(watched.trio.address, watched.wrong_key) as stranger:
        for speculation in (BY_MODEL, SpeculationParams(enabled=False)):
            done = await client.complete(PROMPT, SAMPLED, speculation, trace=True, prediction=SECRET, cache_salt=SECRET)
            texts += [done.text, str(done.token_ids)[1:-1]]
        with pytest.raises(InvalidArgument):
            await client.complete(f"{SECRET} " * 10_000, SAMPLED)
        with pytest.raises(Exception, match="key"):
            await stranger.complete(PROMPT, SAMPLED)
    for key in (watched.wrong_key, watched.key):
        for more in (
            {},
            {"stream": True},
            {"model": SECRET},
            {SECRET: SECRET},
            {"stop": [SECRET] * 100},
            {"user": SECRET},
        ):
            trace, _, parent = new_parent()
            body = {"prompt": PROMPT, "max_tokens": 3, "stop": [SECRET], **more}
            await post(watched, body, key, traceparent=parent, baggage=SECRET, tracestate=f"a={SECRET}")
    # Each service sends in order.
    await spans_of(watched, trace, 5)
    said = repr(watched.collector.spans)
    assert [text for text in texts if text in said] == []
    assert "alice" in said
