"""The three services: speed by alpha, batch size and k, with a draft that takes a forward pass a token, and with one forward pass."""

import asyncio
import itertools
from typing import Any

from benchmarks.gpu.deployment import answer, deployed, rpc_share, speculation_of
from benchmarks.gpu.options import Options
from benchmarks.gpu.plot import plot
from benchmarks.gpu.results import Results
from paceline.client import AsyncClient
from paceline.engine.models.dummy import MASKS_SUFFIX
from paceline.speculation_params import Bounds, DraftLength
from paceline.theory import speedup

ADAPTIVE = Bounds()
# Adaptive answers twice: the first ones teach the coordinator what drafts cost.
LENGTHS: tuple[tuple[str, DraftLength], ...] = (
    ("0", 0), ("2", 2), ("4", 4), ("6", 6), ("adaptive", ADAPTIVE), ("adaptive again", ADAPTIVE),
)  # fmt: skip
Row = dict[str, Any]


def measure(options: Options, results: Results) -> None:
    asyncio.run(sweep(options, results))


async def sweep(options: Options, results: Results) -> None:
    rows: list[Row] = []
    costs = costs_of(results.of("forwards"))
    by_steps = {"model": options.draft, **options.servers}
    # Its many rows are faster in bfloat16.
    in_one = {"model": f"{options.draft}{MASKS_SUFFIX}", **options.servers, "quantization": "none"}
    await sweep_draft(options, results, rows, by_steps, "steps", costs)
    results.put(draft_step_of_forward=costs)
    plot(rows, costs, results.folder / "alpha.png")
    await sweep_draft(options, results, rows, in_one, "one forward pass", None)


async def sweep_draft(
    options: Options, results: Results, rows: list[Row], draft: dict[str, Any], name: str, costs: float | None
) -> None:
    """Starts the model servers once, and a coordinator per alpha."""
    target = {"model": options.target, **options.servers}
    own: list[Row] = []
    async with deployed(target, draft) as now:
        for alpha in options.alphas:
            async with now.with_alpha(alpha) as client:
                # Unmeasured: a new coordinator's first answers take longer.
                await answer(client, options, 1, speculation_of(4))
                for at_once, (label, length) in itertools.product(options.sizes, LENGTHS):
                    point = await measure_point(client, options, at_once, length)
                    own.append({"draft": name, "alpha": alpha, "at_once": at_once, "k": label, **point})
                    compare(own[-1], own, costs)
                    rows.append(own[-1])
                    print(own[-1], flush=True)
                    results.put(points=rows)


async def measure_point(client: AsyncClient, options: Options, at_once: int, length: DraftLength) -> Row:
    speed, done = await answer(client, options, at_once, speculation_of(length))
    figures = [each.finish.speculation for each in done if each.finish is not None]
    drafts = sum(each.proposed for each in figures) / sum(each.rounds for each in figures)
    return {"tokens_per_s": speed, "rpc": rpc_share(done), "drafts_per_round": drafts}


def costs_of(forwards: dict[str, Any]) -> float | None:
    """Returns a draft step's time in target forward passes; None if the forward passes were not measured."""
    try:
        return float(forwards["draft int8, four drafts"]["whole_ms"] / 4 / forwards["target, one row"]["whole_ms"])
    except KeyError:
        return None


def compare(row: Row, rows: list[Row], draft_cost: float | None) -> None:
    """Adds speed over plain; for one request and a fixed k also speed over theory's."""
    plain = next(
        each for each in rows if (each["alpha"], each["at_once"], each["k"]) == (row["alpha"], row["at_once"], "0")
    )
    row["of_plain"] = row["tokens_per_s"] / plain["tokens_per_s"]
    if draft_cost is not None and row["at_once"] == 1 and row["k"] in ("2", "4", "6"):
        row["theory"] = speedup(row["alpha"], int(row["k"]), draft_cost)
        row["of_theory"] = row["of_plain"] / row["theory"]
