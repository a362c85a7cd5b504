"""What the services count is what happened."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from gateway.app import make_app
from gateway.config import GatewaySettings
from gateway.telemetry import VLLM_NAMES
from paceline.errors import InvalidArgument, Unauthenticated
from paceline.results import Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.observability.conftest import BY_MODEL, BY_NGRAM, PROMPT, SAMPLED, SERVICES, Watched
from tests.observability.scrapes import Scrape, scrape
from tests.services import restart

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, temperature=0.5, ignore_eos=True, n=8)


class Change:
    """What a service counted inside a block."""

    def __init__(self, before: Scrape) -> None:
        self.before = before
        self.after = before

    def of(self, name: str, **labels: str) -> float:
        return self.after.value(name, **labels) - self.before.value(name, **labels)


@contextmanager
def change(watched: Watched, service: str) -> Iterator[Change]:
    found = Change(watched.scrape(service))
    yield found
    found.after = watched.scrape(service)


async def answer(
    watched: Watched, speculation: SpeculationParams, prompt: Any = PROMPT, sampling: SamplingParams = SAMPLED
) -> tuple[Completion, int]:
    """A whole answer, and the number of its outputs."""
    completion, num_outputs = Completion(), 0
    async with watched.client() as client:
        async for chunk in client.stream(prompt, sampling, speculation):
            completion.add(chunk)
            num_outputs += 1
    return completion, num_outputs


async def test_a_coordinator_counts_what_its_answers_tell_of_themselves(watched: Watched) -> None:
    with change(watched, "coordinator") as counted:
        by_model, outputs_by_model = await answer(watched, BY_MODEL)
        by_ngram, outputs_by_ngram = await answer(watched, BY_NGRAM, sampling=GREEDY)
    finishes = [by_model.finish, by_ngram.finish]
    figures = [finish.speculation for finish in finishes if finish is not None]
    assert len(figures) == 2
    assert 0 < figures[0].accepted < figures[0].proposed, "neither all nor nothing"
    assert figures[1].proposed, "n-grams must draft as well"

    assert counted.of("paceline_requests_total", code="ok") == counted.of("paceline_requests_total") == 2
    assert counted.of("paceline_generations_total", reason="length") == counted.of("paceline_generations_total") == 2
    assert counted.of("paceline_generated_tokens_total") == 2 * SAMPLED.max_tokens
    assert counted.of("paceline_prompt_tokens_total") == sum(each.prompt_tokens for each in finishes if each)
    assert counted.of("paceline_rounds_total") == sum(each.rounds for each in figures)
    lengths = [each.rounds * each.mean_acceptance_length for each in figures]
    assert counted.of("paceline_round_tokens_total") == pytest.approx(sum(lengths))
    for name, each in (("model", figures[0]), ("ngram", figures[1])):
        assert counted.of("paceline_draft_tokens_total", source=name) == each.proposed
        assert counted.of("paceline_accepted_draft_tokens_total", source=name) == each.accepted
    for position in range(4):
        for name, lists in (
            ("draft", [each.proposed_per_position for each in figures]),
            ("accepted_draft", [each.accepted_per_position for each in figures]),
        ):
            expected = sum(each[position] for each in lists if position < len(each))
            found = counted.of(f"paceline_{name}_tokens_per_position_total", position=str(position))
            assert found == expected, (name, position)
    for name, count in (
        ("time_to_first_token", 2), ("generation", 2), ("queue", 2),
        ("time_between_outputs", outputs_by_model + outputs_by_ngram - 2),
    ):  # fmt: skip
        assert counted.of(f"paceline_{name}_seconds_count") == count, name
    stages = {stage: counted.of("paceline_stage_seconds_total", stage=stage) for stage in ("draft", "target", "queued")}
    for stage, seconds in stages.items():
        told = sum(getattr(finish.timing, f"{stage}_ms") for finish in finishes if finish) / 1e3
        assert seconds == pytest.approx(told, abs=1e-4), stage
    assert stages["draft"] > 0


async def test_a_refused_request_and_an_unknown_caller_are_counted_as_such(watched: Watched) -> None:
    with change(watched, "coordinator") as counted:
        async with watched.client() as client, watched.client(watched.wrong_key) as stranger:
            with pytest.raises(InvalidArgument):
                await client.complete([10_000], SAMPLED)
            with pytest.raises(Unauthenticated):
                await stranger.complete(PROMPT, SAMPLED)
    codes = {code: counted.of("paceline_requests_total", code=code) for code in ("invalid_argument", "unauthenticated")}
    assert codes == {"invalid_argument": 1, "unauthenticated": 1}
    assert counted.of("paceline_requests_total") == 2
    assert counted.of("paceline_generations_total") == counted.of("paceline_generated_tokens_total") == 0


async def test_a_client_that_goes_away_is_counted_with_the_tokens_that_were_made(watched: Watched) -> None:
    before = watched.scrape("coordinator")
    async with watched.client() as client:
        async with asyncio.timeout(60):
            async for _ in client.stream(PROMPT, LONG, BY_MODEL):
                running = await asyncio.to_thread(watched.scrape, "coordinator")
                break
        assert running.value("paceline_generations_running") > 0
    expected = before.value("paceline_requests_total", code="cancelled") + 1
    await watched.until("coordinator", "paceline_requests_total", expected, code="cancelled")
    after = watched.scrape("coordinator")
    assert after.value("paceline_generations_running") == 0
    assert after.value("paceline_generations_total") == before.value("paceline_generations_total")
    made = after.value("paceline_generated_tokens_total") - before.value("paceline_generated_tokens_total")
    assert 0 < made < LONG.n * LONG.max_tokens


async def test_a_model_server_counts_its_steps_and_what_its_cache_held(watched: Watched) -> None:
    prompt = [(7 * number) % 30 + 1 for number in range(100)]
    with change(watched, "target") as counted:
        first, _ = await answer(watched, BY_MODEL, prompt)
        second, _ = await answer(watched, BY_MODEL, prompt)
    assert first.finish is not None
    assert second.finish is not None
    cached = second.finish.cached_prompt_tokens
    assert cached >= 80
    assert counted.of("paceline_prefix_cache_hit_tokens_total") == first.finish.cached_prompt_tokens + cached
    assert counted.of("paceline_prefix_cache_queried_tokens_total") == 2 * len(prompt)
    rounds = sum(each.finish.speculation.rounds + 1 for each in (first, second) if each.finish)
    # One at a time: each round is a step of one job.
    steps = counted.of("paceline_engine_step_seconds_count")
    assert (
        steps
        == counted.of("paceline_engine_step_batch_size_count")
        == counted.of("paceline_engine_step_batch_size_sum")
        == rounds
    )
    proposed = sum(each.finish.speculation.proposed for each in (first, second) if each.finish)
    fed = counted.of("paceline_engine_step_tokens_sum")
    assert fed == 2 * len(prompt) - first.finish.cached_prompt_tokens - cached + proposed + rounds - 2
    assert counted.of("paceline_engine_failed_jobs_total") == 0


@pytest.mark.parametrize("server", ["draft", "target"])
async def test_an_idle_server_holds_no_block_and_all_blocks_add_up(watched: Watched, server: str) -> None:
    await answer(watched, BY_MODEL)
    await watched.until(server, "paceline_sequences", 0)
    await watched.until(server, "paceline_kv_cache_blocks", 0, state="held")
    found = watched.scrape(server)
    async with watched.client() as client:
        description = await client.describe()
    model = description.target if server == "target" else description.draft
    assert model is not None
    assert found.value("paceline_model_info", model=model.name, dtype=model.dtype, device="cpu") == 1
    assert found.value("paceline_kv_cache_used_ratio") == 0
    assert found.value("paceline_kv_cache_blocks", state="cached") > 0
    blocks = found.value("paceline_kv_cache_blocks") * found.value("paceline_kv_cache_block_tokens")
    assert blocks > 1000
    assert found.value("paceline_integrity_checks_total") > 0


async def test_a_gateway_counts_its_requests_by_path_and_status(watched: Watched) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "n": 2}
    before = watched.scrape("gateway")
    async with httpx2.AsyncClient(base_url=watched.url, timeout=60) as http:
        headers = {"authorization": f"Bearer {watched.key}"}
        sent = [
            await http.post("/v1/completions", json=body, headers=headers),
            await http.post("/v1/completions", json=body),
            await http.post("/v1/completions", json={**body, "n": -1}, headers=headers),
            await http.get("/v1/nothing", headers=headers),
        ]
    assert [each.status_code for each in sent] == [200, 401, 400, 404]
    wanted = Counter(
        ("/v1/completions" if each.status_code != 404 else "other", str(each.status_code)) for each in sent
    )
    for (path, status), count in wanted.items():
        expected = before.value("paceline_gateway_requests_total", path=path, status=status) + count
        await watched.until("gateway", "paceline_gateway_requests_total", expected, path=path, status=status)
    after = watched.scrape("gateway")

    def changed(name: str) -> float:
        return after.value(name) - before.value(name)

    assert changed("paceline_gateway_request_seconds_count") == 4
    assert changed("paceline_gateway_generations_total") == 2
    assert changed("paceline_gateway_generated_tokens_total") == 12
    assert changed("paceline_gateway_time_to_first_token_seconds_count") == 1
    for state in ("open_requests", "requests_running", "requests_waiting"):
        assert after.value(f"paceline_gateway_{state}") == 0, state


async def test_the_gateway_has_the_same_numbers_under_vllms_names(watched: Watched) -> None:
    body = {"prompt": PROMPT, "max_tokens": 30, "temperature": 1, "seed": 3, "ignore_eos": True}
    async with httpx2.AsyncClient(base_url=watched.url, timeout=60) as http:
        headers = {"authorization": f"Bearer {watched.key}"}
        asked = {**body, "speculation": {"drafter": "model", "num_speculative_tokens": 4}}
        assert (await http.post("/v1/completions", json=asked, headers=headers)).status_code == 200
    # At the gateway's own address, as a client of vLLM expects.
    found = scrape(f"{watched.url}/metrics", watched.key)
    for name, source in VLLM_NAMES.items():
        own = [each for each in found.samples if each.name.startswith(source) and each.name[len(source) :] in SUFFIXES]
        alias = [each for each in found.samples if each.name.startswith(name) and each.name[len(name) :] in SUFFIXES]
        assert len(own) == len(alias) > 0, name
        assert sorted(each.value for each in own) == sorted(each.value for each in alias), name
        assert {each.labels["model_name"] for each in alias} == {"dummy:tiny-32-a"}
    accepted = found.value("vllm:spec_decode_num_accepted_tokens_total")
    per_position = found.value("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert accepted == per_position > 0
    assert found.value("vllm:request_success_total", finished_reason="length") > 0


SUFFIXES = ("", "_total", "_bucket", "_count", "_sum", "_info")


async def test_an_endpoint_picker_finds_how_full_the_targets_cache_is(watched: Watched) -> None:
    """By the names and labels that those of the Gateway API's inference extension read."""
    async with httpx2.AsyncClient(base_url=watched.url, timeout=60) as http:
        # With a caller's key: this gateway has none of its own.
        await http.get("/v1/deployment", headers={"authorization": f"Bearer {watched.key}"})
    gateway, target = watched.scrape("gateway"), watched.scrape("target")
    tokens, blocks = target.value("paceline_kv_cache_block_tokens"), target.value("paceline_kv_cache_blocks")
    size = {"block_size": f"{tokens:.0f}", "num_gpu_blocks": f"{blocks:.0f}"}
    assert gateway.value("vllm:cache_config_info", **size) == 1
    assert 0 <= gateway.value("vllm:kv_cache_usage_perc") < 1


async def test_every_path_of_the_gateway_has_a_label_of_its_own_and_no_other_path_has() -> None:
    app = make_app(GatewaySettings(coordinators="127.0.0.1:1"))
    paths = {getattr(route, "path", "") for route in app.routes} - {"/v1/models/{model:path}", "/static"}
    assert {"/", "/v1/chat/completions", "/v1/completions", "/v1/models"} < paths
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
    async with app.router.lifespan_context(app), http:
        for path in (*paths, "/v1/models/mine", "/static/page.js", "/secret"):
            await http.get(path)
        exposed = (await http.get("/metrics")).text
    assert set(re.findall(r'requests_total\{path="([^"]*)"', exposed)) == {*paths, "other"}


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_says_which_it_is_and_nothing_twice(watched: Watched, service: str) -> None:
    found = watched.scrape(service)
    assert found.value("paceline_build_info", service=service) == 1
    assert found.value("process_resident_memory_bytes") > 0
    series = Counter((each.name, frozenset(each.labels.items())) for each in found.samples)
    assert [each for each, count in series.items() if count > 1] == []
    assert not [name for name in found.names if name.endswith("_created")]


async def test_a_draft_that_is_away_is_seen_at_the_coordinator_and_one_that_is_back(watched: Watched) -> None:
    """The last of the file: what a draft server has counted goes with it."""
    found = watched.scrape("coordinator")
    assert (found.value("paceline_server_up", server="draft"), found.value("paceline_server_up")) == (1, 2)
    assert found.value("paceline_server_connections_total", server="draft") == 1
    watched.trio.draft.kill()
    await watched.until("coordinator", "paceline_server_up", 0, server="draft")
    completion, _ = await answer(watched, BY_MODEL)
    assert len(completion.token_ids) == SAMPLED.max_tokens
    assert watched.scrape("coordinator").value("paceline_server_up", server="target") == 1
    # In the same place, so that the fixture ends it.
    watched.trio.draft.process = (await asyncio.to_thread(restart, watched.trio.draft)).process
    await watched.until("coordinator", "paceline_server_up", 1, server="draft")
    assert watched.scrape("coordinator").value("paceline_server_connections_total", server="draft") == 2
