"""Under a format the tokens are the same with any drafter, and every finished text is one of the format's."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from paceline.client import AsyncClient, Completion
from paceline.errors import InvalidArgument
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, EntropyAdaptive, Rule, SpeculationParams
from tests.draft_heads import write_head
from tests.hosted import Host
from tests.services import Trio, restart, running, start_trio

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPT = [{"role": "user", "content": "Describe a person."}]
CHOICES = ("alpha beta", "alpha gamma", "delta")


def is_person(text: str) -> bool:
    return jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(text))


FORMATS: dict[str, tuple[OutputFormat, Callable[[str], bool]]] = {
    "schema": (OutputFormat.of_schema(PERSON), is_person),
    "compact": (OutputFormat.of_schema(PERSON, fixed_whitespace=True), is_person),
    "regex": (
        OutputFormat(regex="(yes|no), [a-z]{3,9}"),
        lambda text: re.fullmatch("(yes|no), [a-z]{3,9}", text) is not None,
    ),
    "choice": (OutputFormat(choice=CHOICES), lambda text: text in CHOICES),
    "grammar": (
        OutputFormat(grammar='start: number ("+" number){1,4}\nnumber: /[1-9][0-9]?/'),
        lambda text: re.fullmatch(r"[1-9][0-9]?(\+[1-9][0-9]?){1,4}", text) is not None,
    ),
}
MODEL = {"drafter": Drafter.MODEL}
VARIANTS = {
    "off": SpeculationParams(enabled=False),
    "n-gram": SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
    "suffix": SpeculationParams(drafter=Drafter.SUFFIX, num_speculative_tokens=16),
    "model, 1": SpeculationParams(**MODEL, num_speculative_tokens=1),
    "model, 5": SpeculationParams(**MODEL, num_speculative_tokens=5),
    "model, adaptive": SpeculationParams(**MODEL, num_speculative_tokens=Bounds(1, 8)),
    "entropy": SpeculationParams(**MODEL, num_speculative_tokens=EntropyAdaptive(Bounds(1, 8))),
    "hierarchical": SpeculationParams(drafter=Drafter.HIERARCHICAL, num_speculative_tokens=5),
    "hybrid": SpeculationParams(drafter=Drafter.HYBRID, num_speculative_tokens=4),
    "default": SpeculationParams(),
}
GREEDY = SamplingParams(max_tokens=80, seed=7)
SAMPLED = replace(GREEDY, temperature=1.0)


@pytest.fixture
async def client(embedded_pair: Trio):
    async with AsyncClient(embedded_pair.address) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("schema", GREEDY), ("choice", GREEDY), ("compact", SAMPLED), ("regex", SAMPLED), ("grammar", SAMPLED)],
)
async def test_every_drafter_gives_the_same_tokens_and_the_text_fits(
    client: AsyncClient, name: str, sampling: SamplingParams
) -> None:
    wanted, fits = FORMATS[name]
    plain = await client.complete(PROMPT, sampling, VARIANTS["off"], format=wanted)
    together = await asyncio.gather(
        *(client.complete(PROMPT, sampling, each, format=wanted) for each in VARIANTS.values())
    )
    assert {variant: each.token_ids for variant, each in zip(VARIANTS, together, strict=True)} == dict.fromkeys(
        VARIANTS, plain.token_ids
    )
    # What is forced is told as such whether or not it was drafted, and is no draft.
    forced = [origin == "F" for origin in plain.origins]
    for each in together:
        assert [origin == "F" for origin in each.origins] == forced
        assert each.finish is not None
        assert each.finish.speculation.forced == sum(forced)
        assert each.finish.speculation.accepted == each.origins.count("A")
    assert plain.finish is not None
    assert plain.finish.reason == "stop"
    assert fits(plain.text)


HEAD = [
    SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=1),
    SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=5),
    SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=Bounds(1, 8)),
    SpeculationParams(),
]
TOOLS = [{"type": "function", "function": {"name": "remember", "parameters": PERSON}}]


@pytest.fixture(scope="module")
def target_with_head(host: Host, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded target with a random head: the address of its coordinator, which has no other draft model."""
    folder = tmp_path_factory.mktemp("head")
    write_head(folder, model="smollm2-135m")
    flags = ("--kv-cache-memory", "256MiB", "--max-model-len", "1024", "--check-integrity", "--threads", "1")
    target = host.start("target_server", *flags, "--draft-head", str(folder)).address
    return host.start("coordinator", "--draft", "none", "--target", target).address


@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_no_token_depends_on_a_head_under_a_format_or_with_tools(
    target_with_head: str, temperature: float
) -> None:
    """Nor on what it drafts for others beside."""
    sampling = replace(GREEDY, temperature=temperature)
    asked: list[dict[str, Any]] = [{"format": wanted} for wanted, _ in FORMATS.values()]
    asked += [{"tools": TOOLS, "tool_choice": choice} for choice in ("auto", "required", "remember")]
    async with AsyncClient(target_with_head) as client:
        plain = [await client.complete(PROMPT, sampling, VARIANTS["off"], **each) for each in asked]
        free = [client.complete(PROMPT, sampling, way, trace=True) for way in HEAD[:2]]
        calls = [client.complete(PROMPT, sampling, way, trace=True, **each) for way in HEAD for each in asked]
        *together, first, second = await asyncio.gather(*calls, *free)
    for answer, each in zip(together, plain * len(HEAD), strict=True):
        assert (answer.token_ids, calls_of(answer)) == (each.token_ids, calls_of(each))
    by_head = [[trace for trace in answer.traces if trace.drafter == "head"] for answer in together]
    # In all but the shortest formats and where the adaptive policy has given up a random head, which is sometimes right.
    assert sum(map(bool, by_head)) > len(together) / 2
    assert sum(trace.num_accepted for of_answer in by_head for trace in of_answer) > 0
    assert all("head" in {trace.drafter for trace in each.traces} for each in (first, second))
    assert all(each.tool_calls for each in plain[-2:])


def calls_of(done: Completion) -> list[tuple[str, str]]:
    """Without their ids, which are random."""
    return [(each.name, each.arguments) for each in done.tool_calls]


@pytest.mark.parametrize("rule", Rule)
async def test_many_samples_fit_and_differ(client: AsyncClient, rule: Rule) -> None:
    speculation = SpeculationParams(**MODEL, num_speculative_tokens=4, rule=rule)
    wanted, fits = FORMATS["compact"]
    done = await client.complete_all(PROMPT, replace(SAMPLED, n=6), speculation, format=wanted)
    assert all(fits(each.text) for each in done if each.finish is not None and each.finish.reason == "stop")
    assert len({each.text for each in done}) > 2


async def test_what_is_forced_takes_no_round(client: AsyncClient) -> None:
    wanted = OutputFormat(regex="The answer is (yes|no), without any doubt\\.")
    done = await client.complete(PROMPT, replace(GREEDY, logprobs=2), VARIANTS["off"], format=wanted)
    assert done.finish is not None
    forced = done.finish.speculation.forced
    assert forced == done.origins.count("F") > 5
    assert done.finish.speculation.rounds + 1 == done.finish.completion_tokens - forced <= 4
    assert [each.logprob for each, origin in zip(done.logprobs, done.origins, strict=True) if origin == "F"] == [
        0
    ] * forced
    assert done.finish.speculation.mean_acceptance_length == 1
    # A text under a grammar ends without EOS.
    assert done.text.endswith("doubt.")


async def test_a_forced_token_that_is_banned_is_a_dead_end(client: AsyncClient) -> None:
    wanted = OutputFormat(regex="The answer is (yes|no), without any doubt\\.")
    done = await client.complete(PROMPT, GREEDY, format=wanted)
    forced = next(token for token, origin in zip(done.token_ids, done.origins, strict=True) if origin == "F")
    for speculation in (VARIANTS["off"], VARIANTS["model, 5"]):
        with pytest.raises(InvalidArgument, match="allow no token together"):
            await client.complete(PROMPT, replace(GREEDY, banned_token_ids=(forced,)), speculation, format=wanted)


async def test_other_fields_hold_within_a_format(client: AsyncClient) -> None:
    wanted = OutputFormat(regex="(yes|no), [a-z]{3,9}")
    ids = await client.tokenize("yes", raw=True, add_special_tokens=False)
    chosen = await client.complete(PROMPT, replace(GREEDY, banned_token_ids=tuple(ids)), format=wanted)
    assert re.fullmatch("(yes|no), [a-z]{3,9}", chosen.text)
    short = await client.complete(PROMPT, replace(GREEDY, max_tokens=2), format=wanted)
    assert short.finish is not None
    assert (short.finish.reason, short.finish.completion_tokens) == ("length", 2)
    stopped = await client.complete(PROMPT, replace(GREEDY, stop=(",",)), format=wanted)
    assert stopped.text in ("yes", "no")
    # Behind its end nothing may follow, however short it is.
    early = await client.complete(PROMPT, replace(GREEDY, min_tokens=50), format=OutputFormat(choice=CHOICES))
    assert early.text in CHOICES


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (replace(GREEDY, ignore_eos=True), "ignore_eos"),
        (replace(GREEDY, allowed_token_ids=(300,)), "allow no token together"),
    ],
)
async def test_fields_that_can_not_go_with_a_format_are_refused_and_others_are_served(
    client: AsyncClient, sampling: SamplingParams, words: str
) -> None:
    wanted, fits = FORMATS["regex"]
    bystander = asyncio.create_task(client.complete(PROMPT, GREEDY, format=wanted))
    with pytest.raises(InvalidArgument, match=words):
        await client.complete(PROMPT, sampling, format=wanted)
    assert fits((await bystander).text)


async def test_keywords_that_are_not_enforced_are_named(client: AsyncClient) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    done = await client.complete(PROMPT, GREEDY, format=schema)
    assert done.finish is not None
    assert done.finish.unenforced == ['Unimplemented keys: ["uniqueItems"]']
    with pytest.raises(InvalidArgument, match="uniqueItems"):
        await client.complete(PROMPT, GREEDY, format=OutputFormat.of_schema(schema, strict=True))


@pytest.mark.parametrize("kind", ["json_schema", "regex", "grammar"])
async def test_an_error_names_the_kind_of_format(client: AsyncClient, kind: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.complete(PROMPT, GREEDY, format=OutputFormat(**{kind: "(" * 30}))
    assert caught.value.field == kind


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trio, contextlib.ExitStack]]:
    flags = ("--kv-cache-memory", "64MiB", "--max-model-len", "512", "--threads", "1")
    with start_trio(tmp_path_factory.mktemp("formats"), flags, flags) as trio, contextlib.ExitStack() as stack:
        yield trio, stack


@pytest.mark.slow
@pytest.mark.parametrize("role", ["target", "draft"])
async def test_a_server_that_is_killed_in_the_middle_changes_no_token(
    processes: tuple[Trio, contextlib.ExitStack], role: str
) -> None:
    trio, stack = processes
    wanted, fits = FORMATS["schema"]
    speculation = SpeculationParams(**MODEL, num_speculative_tokens=4)
    async with AsyncClient(trio.address) as client:
        expected = await client.complete(PROMPT, SAMPLED, VARIANTS["off"], format=wanted)
        tokens: list[int] = []
        async for chunk in client.stream(PROMPT, SAMPLED, speculation, format=wanted):
            tokens += chunk.token_ids
            service = getattr(trio, role)
            if len(tokens) > 8 and service.process.poll() is None and service.process not in _killed:
                await kill_and_restart(trio, role, stack)
        assert tokens == expected.token_ids
        assert fits(expected.text)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["target", "draft"])
async def test_a_server_that_is_killed_in_the_middle_changes_no_beam(
    processes: tuple[Trio, contextlib.ExitStack], role: str
) -> None:
    trio, stack = processes
    wanted, sampling = FORMATS["schema"][0], replace(GREEDY, beams=4)
    async with AsyncClient(trio.address) as client:
        expected = await client.complete(PROMPT, sampling, VARIANTS["off"], format=wanted)
        search = asyncio.create_task(client.complete(PROMPT, sampling, VARIANTS["model, 5"], format=wanted))
        await asyncio.sleep(0.5)
        await kill_and_restart(trio, role, stack)
        assert (await search).token_ids == expected.token_ids


async def kill_and_restart(trio: Trio, role: str, stack: contextlib.ExitStack) -> None:
    service = getattr(trio, role)
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    setattr(trio, role, again := await asyncio.to_thread(restart, service))
    _killed.add(again.process)
    stack.enter_context(running(again))


# Processes that have taken a killed one's place.
_killed: set[Any] = set()
