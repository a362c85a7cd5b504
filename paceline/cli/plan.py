import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline.checks import require
from paceline.cli import options, plots
from paceline.cli.command import run
from paceline.cli.measure import BUILT_IN_PROMPTS, MIN_TOKENS, Measured, measure
from paceline.client import AsyncClient
from paceline.errors import ConfigError, InvalidArgument
from paceline.prompts import read_prompts
from paceline.rpc.channel import COORDINATOR_ADDRESS
from paceline.speculation_params import MAX_DRAFT_TOKENS
from paceline.theory import Forecast

# Acceptance above which a smaller draft is worth trying, and below which another draft is needed.
MUCH_ACCEPTED = 0.9
LITTLE_ACCEPTED = 0.5

LEGEND = (
    "accepted, tokens: expected per round; speed-up: over plain decoding\n"
    "operations, target reads: arithmetic and reads of the target's weights and\n"
    "cache per token, relative to plain decoding"
)


def plan(
    alpha: Annotated[float | None, typer.Option(help="chance that a draft token is accepted, in [0, 1]")] = None,
    draft_cost: Annotated[float | None, typer.Option(help="time of a draft step, in target forward passes")] = None,
    rpc_cost: Annotated[
        float | None,
        typer.Option(help="time of a round's messages, in target forward passes; default: 0, or as measured"),
    ] = None,
    verify_cost: Annotated[
        float | None,
        typer.Option(
            help="time that each draft token adds to a target forward pass, in target forward passes; default: 0, or as measured"
        ),
    ] = None,
    operations_cost: Annotated[
        float | None,
        typer.Option(help="arithmetic of a draft step, relative to the target's for one token; default: --draft-cost"),
    ] = None,
    max_draft_tokens: Annotated[int, typer.Option(help=f"largest k, in [1, {MAX_DRAFT_TOKENS}]")] = MAX_DRAFT_TOKENS,
    png: Annotated[Path | None, typer.Option(help="write the plot to this .png file")] = None,
    measured: Annotated[
        bool, typer.Option("--measure", help="measure alpha and the costs that are not given, on running services")
    ] = False,
    address: options.Address = COORDINATOR_ADDRESS,
    api_key_file: options.ApiKeyFile = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    prompts: Annotated[
        Path | None, typer.Option(help=f"with --measure, a file of prompts: {options.PROMPT_FORMS}")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help=f"with --measure: tokens per prompt, at least {MIN_TOKENS}")] = 64,
    temperature: Annotated[float, typer.Option(help="with --measure: sampling temperature; 0 is greedy")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Says whether to speculate, how many tokens to draft, and what speed to expect."""
    check_costs(alpha, draft_cost, rpc_cost, verify_cost, operations_cost)
    require(
        1 <= max_draft_tokens <= MAX_DRAFT_TOKENS, "--max-draft-tokens", max_draft_tokens, f"in [1, {MAX_DRAFT_TOKENS}]"
    )
    options.require_file("--png", png, ".png")
    if prompts is not None and not measured:
        raise InvalidArgument("--prompts", "needs --measure")
    found = None
    if measured:
        connect = options.connector(address, api_key_file, options.read_tls(tls_ca, tls_cert, tls_key))
        found = _measure(connect, prompts, max_tokens, temperature)
        alpha = found.alpha if alpha is None else alpha
        draft_cost = found.draft_cost if draft_cost is None else draft_cost
        rpc_cost = found.rpc_cost if rpc_cost is None else rpc_cost
        verify_cost = found.row_cost if verify_cost is None else verify_cost
    if alpha is None or draft_cost is None:
        name, allowed = ("--alpha", "a number in [0, 1]") if alpha is None else ("--draft-cost", "a number >= 0")
        raise InvalidArgument(name, f"is missing; give {allowed}, or --measure")
    operations_cost = draft_cost if operations_cost is None else operations_cost
    made = Forecast(alpha, draft_cost, rpc_cost or 0.0, operations_cost, max_draft_tokens, verify_cost or 0.0)
    if as_json:
        print(json.dumps(as_record(made, found)))
    else:
        show(Console(highlight=False), made, found)
    if png is None:
        return
    try:
        plots.write_png(png, made)
    except OSError as error:
        raise ConfigError(f"--png {png}: {error.strerror or error}") from error


def check_costs(
    alpha: float | None,
    draft_cost: float | None,
    rpc_cost: float | None,
    verify_cost: float | None,
    operations_cost: float | None,
) -> None:
    require(alpha is None or 0 <= alpha <= 1, "--alpha", alpha, "in [0, 1]")
    costs = {
        "--draft-cost": draft_cost,
        "--rpc-cost": rpc_cost,
        "--verify-cost": verify_cost,
        "--operations-cost": operations_cost,
    }
    for name, cost in costs.items():
        require(cost is None or 0 <= cost < math.inf, name, cost, "a finite number >= 0")


def as_record(made: Forecast, found: Measured | None) -> dict[str, Any]:
    best, rows = made.best, made.rows()
    return {
        "alpha": made.alpha,
        "draft_cost": made.draft_cost,
        "rpc_cost": made.rpc_cost,
        "verify_cost": made.verify_cost,
        "operations_cost": made.operations_cost,
        "speculate": best > 0,
        "best_k": best,
        "accepted_per_round": rows[best]["accepted_per_round"],
        "tokens_per_round": rows[best]["tokens_per_round"],
        "target_reads": rows[best]["target_reads"],
        "speedup": made.speed(best),
        "speedup_over_k0": made.gain(best),
        "oracle": made.oracle(),
        "advice": [said for said in (advice(made), about_the_draft(made)) if said],
        "rounds": rows,
        "measured": None if found is None else asdict(found),
    }


def show(console: Console, made: Forecast, found: Measured | None) -> None:
    if found is not None:
        console.print(measured_text(found, made.verify_cost), end="\n\n", markup=False)
    best, rows, has_rpc_cost = made.best, made.rows(), made.rpc_cost > 0
    table = Table(title=f"alpha {made.alpha:.3g}, {made.costs}", title_justify="left")
    headings = ("k", "accepted", "tokens", "speed-up", *(["over k = 0"] if has_rpc_cost else []), "operations")
    for heading in (*headings, "target reads"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [str(row["k"]), f"{row['accepted_per_round']:.2f}", f"{row['tokens_per_round']:.2f}"]
        cells += [f"{row['speedup']:.2f}x"] + ([f"{row['speedup_over_k0']:.2f}x"] if has_rpc_cost else [])
        cells += [f"{row['operations']:.2f}x", f"{row['target_reads']:.2f}x"]
        table.add_row(*cells, style="bold green" if row["k"] == best else None)
    console.print(table)
    console.print(LEGEND, style="dim")
    console.print("\nspeed-up against k\n", style="dim")
    console.print(plots.terminal_plot([row["speedup"] for row in rows], best))
    console.print(f"\n{advice(made)}", style="bold", markup=False)
    if said := about_the_draft(made):
        console.print(said, markup=False)
    console.print(about_the_oracle(made), markup=False)


def measured_text(found: Measured, verify_cost: float) -> str:
    text = (
        f"Measured with k = {found.k}: {found.accepted} of {found.decided} decided drafts accepted; a target forward pass "
        f"takes {found.target_ms:.3g} ms, a draft step {found.draft_cost:.3g} and a round's RPCs {found.rpc_cost:.3g} of it; "
        f"{found.speedup:.2f} times the speed without speculation."
        f"\nVerifying {found.k} drafts takes {found.verify_cost:.3g} plain forward passes here"
    )
    if verify_cost < found.row_cost:
        return f"{text}, more than --verify-cost says: the speeds below are too high."
    return f"{text}."


def advice(made: Forecast) -> str:
    best = made.best
    if best == 0:
        return f"Do not speculate: with {made.alpha:.0%} of the drafts accepted, {_why_not(made)}"
    tokens = f"{best} draft token{'s' if best > 1 else ''} per round"
    most = " (the most allowed)" if best == made.longest else ""
    expected = f"expect {made.gain(best):.2f} times the speed of plain decoding"
    if made.rpc_cost > 0:
        expected += f" on the same services, {made.speed(best):.2f} times that of a single process"
    return f"Speculate with {tokens}{most}: {expected}."


def about_the_draft(made: Forecast) -> str | None:
    if made.alpha > MUCH_ACCEPTED:
        advised = "Try" if made.best == 0 else "Draft many tokens, and try"
        return (
            f"More than {MUCH_ACCEPTED:.0%} of the drafts are accepted. {advised} a smaller draft model: it agrees less "
            "often, but its steps take less time."
        )
    if made.alpha < LITTLE_ACCEPTED:
        return (
            f"Less than {LITTLE_ACCEPTED:.0%} of the drafts are accepted: the draft model agrees too seldom with the "
            "target. Draft few tokens, or use another draft model (paceline distill makes one for a target)."
        )
    return None


def about_the_oracle(made: Forecast) -> str:
    if math.isinf(made.oracle_speed):
        return "Drafts are always accepted and cost nothing: more of them are always faster."
    share = made.oracle_speed / made.speed(made.best) - 1
    over = "no speculation" if made.best == 0 else f"k = {made.best}"
    return (
        f"An oracle that drafts exactly the tokens that will be accepted would be {share:.0%} faster than {over}: "
        f"{made.oracle_speed:.2f}x. No choice of k does better."
    )


def _why_not(made: Forecast) -> str:
    """Applies corollary 3.9 with RPC cost and verification: if any number of drafts pays, one does."""
    limit = made.alpha * (1 + made.rpc_cost) - made.verify_cost
    if limit <= 0:
        return "it never pays, however fast the draft model is."
    return f"it pays only if a draft step takes less than {limit:.3g} target forward passes, and it takes {made.draft_cost:.3g}."


def _measure(connect: Callable[[], AsyncClient], path: Path | None, max_tokens: int, temperature: float) -> Measured:
    require(max_tokens >= MIN_TOKENS, "--max-tokens", max_tokens, f">= {MIN_TOKENS}")
    require(0 <= temperature < math.inf, "--temperature", temperature, "a finite number >= 0")
    given = None if path is None else [record.prompt for record in read_prompts("--prompts", path)]
    return run(measure(connect, given or BUILT_IN_PROMPTS, max_tokens, temperature))
