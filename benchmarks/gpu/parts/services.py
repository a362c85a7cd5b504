"""The three services on one device: speed against alpha and k, the wire's share, memory, identity."""

import asyncio
import contextlib
import itertools
import re
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.prompts import spread_prompts
from paceline.client import AsyncClient, Completion
from paceline.deployment.deployment import make_deployment
from paceline.deployment.services import Services
from paceline.sampling import Bounds, Drafter, DraftLength, SamplingParams, SpeculationParams
from paceline.theory import speedup

OWN_PROMPTS = Path(__file__).parent.parent.parent / "tests" / "data" / "prompts.jsonl"
PROMPT_TOKENS = 512
ADAPTIVE = Bounds()
LENGTHS: tuple[DraftLength, ...] = (0, 2, 4, 6, ADAPTIVE)
PLAIN = SpeculationParams(enabled=False)
# In a server's log: all of its budget.
BUDGET = re.compile(r": ([\d,]+) MiB of [\d,]+ \(")


@dataclass(slots=True)
class Running:
    """Services, a client, and what the servers said of memory."""

    client: AsyncClient
    budgets: dict[str, float]


@contextlib.asynccontextmanager
async def running(
    target: str, draft: str, device: str, synthetic_acceptance: float | None = None, **servers: Any
) -> AsyncIterator[Running]:
    budgets: dict[str, float] = {}

    def read(service: str, line: str) -> None:
        if found := BUDGET.search(line):
            budgets[service] = float(found[1].replace(",", ""))

    with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as folder:
        both = {"device": device, **servers}
        coordinator = {"listen": f"unix:{folder}/coordinator.sock"}
        if synthetic_acceptance is not None:
            coordinator["synthetic_acceptance"] = synthetic_acceptance
        deployment = make_deployment({"model": target, **both}, {"model": draft, **both}, coordinator)
        async with Services(deployment, read) as services, AsyncClient(services.address) as client:
            yield Running(client, budgets)


async def answer(
    client: AsyncClient, at_once: int, tokens: int, speculation: SpeculationParams
) -> tuple[float, list[Completion]]:
    """Tokens a second behind the first of each, and the completions."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    prompts = [[3 + (7 * index + place) % 1000 for place in range(PROMPT_TOKENS)] for index in range(at_once)]
    # The prompts' own time is not what is asked for: both caches have them.
    await asyncio.gather(
        *(
            client.complete(
                p, replace(sampling, max_tokens=4), SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=1)
            )
            for p in prompts
        )
    )
    started_s = time.perf_counter()
    done = await asyncio.gather(*(client.complete(prompt, sampling, speculation) for prompt in prompts))
    return at_once * tokens / (time.perf_counter() - started_s), done


def wire_share(done: list[Completion]) -> float:
    """Of the rounds' time."""
    timings = [each.finish.timing for each in done if each.finish is not None]
    whole = sum(each.draft_ms + each.target_ms + each.queued_ms + each.wire_ms for each in timings)
    return sum(each.wire_ms for each in timings) / whole


async def grid(
    target: str, draft: str, device: str, alphas: list[float], sizes: list[int], tokens: int
) -> list[dict[str, Any]]:
    """Speed for each alpha, number at once and k; the servers are started for each alpha anew."""
    rows = []
    for alpha in alphas:
        async with running(target, draft, device, alpha) as now:
            for at_once, length in itertools.product(sizes, LENGTHS):
                speculation = (
                    PLAIN if length == 0 else SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=length)
                )
                speed, done = await answer(now.client, at_once, tokens, speculation)
                name = "adaptive" if length is ADAPTIVE else str(length)
                rows.append(
                    {"alpha": alpha, "at_once": at_once, "k": name, "tokens_per_s": speed, "wire": wire_share(done)}
                )
                plain = next(each["tokens_per_s"] for each in reversed(rows) if each["k"] == "0")
                print(f"alpha {alpha}, {at_once} at once, k {name}: {speed:.1f} tokens/s, {speed / plain:.2f} x plain, "
                      f"wire {rows[-1]['wire']:.1%}", flush=True)  # fmt: skip
    return rows


def beside_theory(rows: list[dict[str, Any]], draft_cost: float, wire: float) -> None:
    """Of one at a time: measured over what costs and wire say. Both costs in target forwards."""
    for row in rows:
        if row["at_once"] == 1 and row["k"] not in ("0", "adaptive"):
            plain = next(
                r["tokens_per_s"] for r in rows if (r["alpha"], r["at_once"], r["k"]) == (row["alpha"], 1, "0")
            )
            expected = speedup(row["alpha"], int(row["k"]), draft_cost, wire) * (1 + wire)
            row["of_theory"] = row["tokens_per_s"] / plain / expected
            print(f"alpha {row['alpha']}, k {row['k']}: {row['of_theory']:.1%} of theory ({expected:.2f} x)")


def plot(rows: list[dict[str, Any]], costs: tuple[float, float] | None, path: Path) -> None:
    """Speed over plain by alpha, a picture for each number at once; with costs (draft step, wire) theory beside it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes = sorted({row["at_once"] for row in rows})
    figure = Figure(figsize=(5 * len(sizes), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, at_once in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        mine = [row for row in rows if row["at_once"] == at_once]
        plain = {row["alpha"]: row["tokens_per_s"] for row in mine if row["k"] == "0"}
        for name in dict.fromkeys(row["k"] for row in mine if row["k"] != "0"):
            points = [(row["alpha"], row["tokens_per_s"] / plain[row["alpha"]]) for row in mine if row["k"] == name]
            [line] = axes.plot(*zip(*points, strict=True), marker="o", label=f"k = {name}")
            if costs is not None and at_once == 1 and name != "adaptive":
                theory = [speedup(alpha, int(name), *costs) * (1 + costs[1]) for alpha in plain]
                axes.plot(list(plain), theory, linestyle="dashed", color=line.get_color())
        axes.set(title=f"{at_once} at once", xlabel="alpha", ylabel="speed over plain")
        axes.legend()
    figure.savefig(path, format="png", dpi=120)


async def memory(target: str, draft: str) -> dict[str, float]:
    """MiB in use by both servers, against what their budgets say."""
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    async with running(target, draft, "cuda") as now:
        await answer(now.client, 8, 64, SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4))
        after, _ = torch.cuda.mem_get_info()
    used, budget = (before - after) / 2**20, sum(now.budgets.values())
    print(f"memory: {used:,.0f} MiB in use, {budget:,.0f} MiB in the budgets ({used / budget:.3f})")
    return {"used_mib": used, "budget_mib": budget}


async def identity(device: str, count: int, deterministic: bool) -> int:
    """Of so many of the project's prompts, those answered otherwise with speculation, greedy, 64 tokens."""
    sampling = SamplingParams(max_tokens=64)
    prompts = [prompt.text for prompt in spread_prompts(OWN_PROMPTS, count)]
    async with running("smollm2-135m", "smollm2-135m-draft", device, deterministic=deterministic) as now:
        plain = [await now.client.complete(prompt, sampling, PLAIN) for prompt in prompts]
        speculative = await asyncio.gather(
            *(
                now.client.complete(prompt, sampling, SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4))
                for prompt in prompts
            )
        )
    differ = sum(one.token_ids != other.token_ids for one, other in zip(plain, speculative, strict=True))
    print(f"deterministic {deterministic}: {differ} of {len(prompts)} differ")
    return differ
