import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from paceline.checks import require
from paceline.cli import options
from paceline.cli.command import run
from paceline.client import AsyncClient, Deployment, Prompt, Tls
from paceline.errors import ConfigError, InvalidArgument, RequestError
from paceline.loadtest.load_generator import Extent, LiveProgress, Runner, Workload
from paceline.loadtest.metrics import Slo, parse_slo
from paceline.loadtest.page import render
from paceline.loadtest.report import Point, Report, as_record, first_failures, print_report
from paceline.loadtest.workload import (
    DEFAULT,
    UNLIMITED,
    ClosedLoop,
    Lengths,
    Load,
    OpenLoop,
    Variant,
    parse_lengths,
    parse_sweep,
    parse_variants,
    synthetic_prompt,
)
from paceline.prompts import read_prompts
from paceline.rpc.channel import COORDINATOR_ADDRESS
from paceline.sampling_params import SamplingParams

DEFAULT_REQUESTS = 32
DEFAULT_LENGTHS = "128:64"
DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class BenchPlan:
    addresses: list[str]
    loads: list[Load]
    # SpeculationParams fields by variant name.
    variants: dict[str, dict[str, Any]]
    extent: Extent
    # None for synthetic prompts.
    prompts: list[Prompt] | None
    lengths: Lengths
    sampling: SamplingParams
    raw: bool
    timeout_s: float
    slo: Slo | None


def bench(
    address: options.Addresses = None,
    api_key_file: options.ApiKeyFile = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    concurrency: Annotated[int | None, typer.Option(help="closed loop: requests in flight; default: 1")] = None,
    rate: Annotated[float | None, typer.Option(help="open loop: requests per second, Poisson arrivals")] = None,
    sweep: Annotated[str | None, typer.Option(help="run several loads: concurrency=1,2,4 or rate=0.5,1")] = None,
    requests: Annotated[
        int | None,
        typer.Option(help=f"requests per load and variant; default: {DEFAULT_REQUESTS}, unlimited with --duration"),
    ] = None,
    duration: Annotated[float | None, typer.Option(help="seconds after which a load starts no more requests")] = None,
    warmup: Annotated[int, typer.Option(help="unmeasured requests before each load and variant")] = 2,
    prompts: Annotated[Path | None, typer.Option(help=f"a file of prompts: {options.PROMPT_FORMS}")] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            help=f"IN:OUT: random prompts of IN tokens, outputs of OUT tokens; default without --prompts: {DEFAULT_LENGTHS}"
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"tokens to generate; default: {DEFAULT_MAX_TOKENS}, or OUT", callback=options.at_least_one_token
        ),
    ] = None,
    temperature: options.Temperature = 0.0,
    seed: Annotated[
        int, typer.Option(help="seed of arrivals, synthetic prompts and sampling; request i uses SEED + i")
    ] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="generate --max-tokens tokens; synthetic requests always do")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="send prompts without the chat template")] = False,
    compare: Annotated[
        str, typer.Option(help="variants to compare: off,model,ngram,hybrid,model:4,adaptive,...")
    ] = DEFAULT,
    slo: Annotated[str | None, typer.Option(help="latency limits for goodput, in ms: ttft=500,itl=50,e2e=5000")] = None,
    timeout: Annotated[float, typer.Option(help="seconds until a request counts as failed")] = 300.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write metrics and requests to this file")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="write an HTML page with plots to this file")] = None,
) -> None:
    """Measures latency, throughput, acceptance and the parts of a round's time under load."""
    options.require_file("--json", json_file)
    options.require_file("--html", html_file)
    require(0 < timeout < math.inf, "--timeout", timeout, "a finite number of seconds > 0")
    lengths, sampling = check_lengths(prompts, synthetic, max_tokens, temperature, seed, ignore_eos)
    plan = BenchPlan(
        addresses=address or [COORDINATOR_ADDRESS],
        loads=choose_loads(concurrency, rate, sweep),
        variants=parse_variants(compare),
        extent=check_extent(requests, duration, warmup),
        prompts=None if prompts is None else [record.prompt for record in read_prompts("--prompts", prompts)],
        lengths=lengths,
        sampling=sampling,
        raw=raw,
        timeout_s=timeout,
        slo=None if slo is None else parse_slo(slo),
    )
    key, tls = options.read_key(api_key_file), options.read_tls(tls_ca, tls_cert, tls_key)
    report = run(measure(plan, described(plan, prompts), key, tls))
    print_report(Console(highlight=False), report)
    _write(json_file, "--json", lambda: json.dumps(as_record(report), indent=1))
    _write(html_file, "--html", lambda: render(report))
    if not report.records:
        raise RequestError("no request started; give a longer --duration")
    if not any(record.is_ok for record in report.records):
        raise RequestError(f"every request failed; {first_failures(report)[0]}")


def choose_loads(concurrency: int | None, rate: float | None, sweep: str | None) -> list[Load]:
    given = {"--concurrency": concurrency, "--rate": rate, "--sweep": sweep}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidArgument(" and ".join(names), "are given; give one of --concurrency, --rate, --sweep")
    if sweep is not None:
        return parse_sweep(sweep)
    return [OpenLoop(rate)] if rate is not None else [ClosedLoop(1 if concurrency is None else concurrency)]


def check_extent(requests: int | None, duration: float | None, warmup: int) -> Extent:
    require(requests is None or 1 <= requests < UNLIMITED, "--requests", requests, f"in [1, {UNLIMITED})")
    require(duration is None or 0 < duration < math.inf, "--duration", duration, "a finite number of seconds > 0")
    require(0 <= warmup < UNLIMITED, "--warmup", warmup, f"in [0, {UNLIMITED})")
    default = DEFAULT_REQUESTS if duration is None else UNLIMITED
    return Extent(default if requests is None else requests, math.inf if duration is None else duration, warmup)


def check_lengths(
    prompts: Path | None, synthetic: str | None, max_tokens: int | None, temperature: float, seed: int, ignore_eos: bool
) -> tuple[Lengths, SamplingParams]:
    if synthetic is not None and prompts is not None:
        raise InvalidArgument("--prompts and --synthetic", "are given; give one of them")
    if synthetic is not None and max_tokens is not None:
        raise InvalidArgument(
            "--max-tokens and --synthetic", "are given; OUT of --synthetic IN:OUT says how many tokens"
        )
    lengths = parse_lengths(synthetic or DEFAULT_LENGTHS)
    default = DEFAULT_MAX_TOKENS if prompts is not None else lengths.output
    sampling = SamplingParams(
        max_tokens=default if max_tokens is None else max_tokens, temperature=temperature, seed=seed,
        ignore_eos=ignore_eos or prompts is None,
    )  # fmt: skip
    return Lengths(lengths.prompt, sampling.max_tokens), sampling


async def measure(plan: BenchPlan, settings: dict[str, str], key: str | None = None, tls: Tls | None = None) -> Report:
    """Runs every load. Raises Unavailable or Unauthenticated naming the coordinator."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(each, key, tls)) for each in plan.addresses]
        deployments = [await client.describe() for client in clients]
        variants = [
            Variant(name, await options.resolve_speculation(clients[0], given, plan.sampling))
            for name, given in plan.variants.items()
        ]
        began = datetime.now().astimezone().isoformat(timespec="seconds")
        counted = plan.extent.requests + plan.extent.warmup
        total = None if plan.extent.requests == UNLIMITED else len(plan.loads) * len(variants) * counted
        with LiveProgress(total) as progress:
            workload = Workload(_prompts_of(plan, deployments), plan.sampling, plan.raw, plan.timeout_s)
            runner = Runner(clients, workload, progress.count)
            points = []
            for load in plan.loads:
                progress.show_load(load.label)
                points.append(Point.of(load, await runner.run(load, variants, plan.extent), plan.slo))
    return Report(began, _deployment(deployments[0]), settings, plan.slo, points)


def described(plan: BenchPlan, prompts: Path | None) -> dict[str, str]:
    extent, sampling = plan.extent, plan.sampling
    counts = [f"{extent.requests} requests"] if extent.requests != UNLIMITED else []
    counts += [f"{extent.duration_s:g} s"] if extent.duration_s < math.inf else []
    synthetic = f"{plan.lengths.prompt} random tokens"
    return {
        "addresses": ", ".join(plan.addresses),
        "loads": ", ".join(load.label for load in plan.loads),
        "variants": ", ".join(plan.variants),
        "extent": f"{' or '.join(counts)} for each load and variant, after {extent.warmup} warm-ups",
        "prompts": synthetic if plan.prompts is None else f"{len(plan.prompts)} from {prompts}",
        "output": f"at most {sampling.max_tokens} tokens" + (", end-of-text ignored" if sampling.ignore_eos else ""),
        "sampling": f"temperature {sampling.temperature:g}, seed {sampling.seed} + request",
        "SLO": "none" if plan.slo is None else f"{plan.slo.label} ms",
    }


def _deployment(deployment: Deployment) -> dict[str, str]:
    models = {"target": deployment.target, **({"draft": deployment.draft} if deployment.draft is not None else {})}
    shown = {role: f"{model.name} ({model.dtype}, {model.device})" for role, model in models.items()}
    return {**shown, "version": deployment.version}


def _prompts_of(plan: BenchPlan, deployments: list[Deployment]) -> Callable[[int, str], Prompt]:
    """Raises InvalidArgument if lengths don't fit the model."""
    if plan.prompts is not None:
        listed = plan.prompts
        return lambda index, name: listed[index % len(listed)]
    plan.lengths.check(min(deployment.target.max_model_len for deployment in deployments))
    token_ids = range(min(deployment.target.vocab_size for deployment in deployments))
    # Each variant gets its own prompts, which no other variant has left in a prefix cache.
    return lambda index, name: synthetic_prompt(plan.lengths.prompt, token_ids, f"{plan.sampling.seed} {name} {index}")


def _write(path: Path | None, name: str, content: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        path.write_text(content(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror or error}") from error
