import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline.checks import require
from paceline.cli import options, plots
from paceline.cli.measure import BUILT_IN_PROMPTS, MIN_TOKENS, Measured, measure
from paceline.client import AsyncClient
from paceline.errors import ConfigError, InvalidArgument
from paceline.prompts import read_prompts
from paceline.simulation import (
    ANSWER_TOKENS,
    DRAFT,
    NOISE,
    QUESTION_TOKENS,
    SYSTEM_TOKENS,
    TARGET,
    TURNS,
    Deployment,
    Load,
    Outcome,
    Prices,
    best,
    deployments,
    simulate,
)
from paceline.speculation import MAX_DRAFT_TOKENS
from paceline.theory import Forecast

# Acceptance above which a smaller draft is worth trying, and below which another draft is needed.
MUCH_ACCEPTED = 0.9
LITTLE_ACCEPTED = 0.5

# Without flags, a round of --machines.
SIMULATED_ALPHA, SIMULATED_K = 0.8, 4
USERS_PER_MACHINE = 100
MAX_MACHINES, MAX_USERS = 64, 10_000

LEGEND = (
    "accepted, tokens: expected per round; speed-up: over plain decoding\n"
    "operations, target reads: arithmetic and reads of the target's weights and\n"
    "cache per token, relative to plain decoding"
)


def plan(
    alpha: Annotated[float | None, typer.Option(help="chance that a draft token is accepted, in [0, 1]")] = None,
    draft_cost: Annotated[float | None, typer.Option(help="time of a draft step, in target forwards")] = None,
    wire: Annotated[
        float | None, typer.Option(help="time of a round's messages, in target forwards; default: 0, or as measured")
    ] = None,
    verify_cost: Annotated[
        float | None,
        typer.Option(
            help="time that each draft token adds to a target forward, in target forwards; default: 0, or as measured"
        ),
    ] = None,
    operations_cost: Annotated[
        float | None,
        typer.Option(help="arithmetic of a draft step, relative to the target's for one token; default: --draft-cost"),
    ] = None,
    max_draft_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"largest k, in [1, {MAX_DRAFT_TOKENS}], default: {MAX_DRAFT_TOKENS}; with --machines: k of every round, "
            f"default: {SIMULATED_K}"
        ),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(
            help="simulate users of this many machines: pairs, targets and drafts apart, and no drafts; costs that are not "
            "given are an H100's"
        ),
    ] = None,
    users: Annotated[
        int | None, typer.Option(help=f"with --machines: users; default: {USERS_PER_MACHINE} per machine")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="write the plot to this .png file")] = None,
    figure_folder: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            help="write the paper's figures 2, 3 and 4 for these costs to this folder, as .png, .svg and .csv",
        ),
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measure", help="measure alpha and the costs that are not given, on running services")
    ] = False,
    address: options.Address = options.DEFAULT_ADDRESS,
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
    check_costs(alpha, draft_cost, wire, verify_cost, operations_cost)
    require(max_draft_tokens is None or 1 <= max_draft_tokens <= MAX_DRAFT_TOKENS, "--max-draft-tokens",
            max_draft_tokens, f"in [1, {MAX_DRAFT_TOKENS}]")  # fmt: skip
    check_machines(machines, users, {"--png": png, "--figures": figure_folder, "--operations-cost": operations_cost})
    options.require_file("--png", png, ".png")
    if figure_folder is not None:
        ok = figure_folder.is_dir() or (figure_folder.parent.is_dir() and not figure_folder.exists())
        require(ok, "--figures", str(figure_folder), "a folder, or a new name in a folder that exists")
    if prompts is not None and not measured:
        raise InvalidArgument("--prompts", "needs --measure")
    found = None
    if measured:
        connect = options.connector(address, api_key_file, options.read_tls(tls_ca, tls_cert, tls_key))
        found = _measure(connect, prompts, max_tokens, temperature)
        alpha = found.alpha if alpha is None else alpha
        draft_cost = found.draft_cost if draft_cost is None else draft_cost
        wire = found.wire if wire is None else wire
        verify_cost = found.row_cost if verify_cost is None else verify_cost
    if machines is not None:
        load = load_of(
            users or machines * USERS_PER_MACHINE, alpha, draft_cost, wire, verify_cost, max_draft_tokens, found
        )
        outcomes = {each: simulate(each, load) for each in deployments(machines)}
        if as_json:
            print(json.dumps(simulated_record(load, outcomes, found)))
        else:
            show_machines(Console(highlight=False), load, outcomes, found)
        return
    if alpha is None or draft_cost is None:
        name, allowed = ("--alpha", "a number in [0, 1]") if alpha is None else ("--draft-cost", "a number >= 0")
        raise InvalidArgument(name, f"is missing; give {allowed}, or --measure")
    operations_cost = draft_cost if operations_cost is None else operations_cost
    longest = max_draft_tokens or MAX_DRAFT_TOKENS
    made = Forecast(alpha, draft_cost, wire or 0.0, operations_cost, longest, verify_cost or 0.0)
    if as_json:
        print(json.dumps(as_record(made, found)))
    else:
        show(Console(highlight=False), made, found)
    _write_pictures(made, png, figure_folder)


def check_costs(
    alpha: float | None,
    draft_cost: float | None,
    wire: float | None,
    verify_cost: float | None,
    operations_cost: float | None,
) -> None:
    require(alpha is None or 0 <= alpha <= 1, "--alpha", alpha, "in [0, 1]")
    costs = {
        "--draft-cost": draft_cost,
        "--wire": wire,
        "--verify-cost": verify_cost,
        "--operations-cost": operations_cost,
    }
    for name, cost in costs.items():
        require(cost is None or 0 <= cost < math.inf, name, cost, "a finite number >= 0")


def check_machines(machines: int | None, users: int | None, others: dict[str, object]) -> None:
    if machines is None:
        if users is not None:
            raise InvalidArgument("--users", "needs --machines")
        return
    require(1 <= machines <= MAX_MACHINES, "--machines", machines, f"in [1, {MAX_MACHINES}]")
    require(users is None or 1 <= users <= MAX_USERS, "--users", users, f"in [1, {MAX_USERS}]")
    for name, value in others.items():
        if value is not None:
            raise InvalidArgument(name, "can't be combined with --machines")


def load_of(
    num_users: int,
    alpha: float | None,
    draft_cost: float | None,
    wire: float | None,
    verify_cost: float | None,
    k: int | None,
    found: Measured | None,
) -> Load:
    """Returns the built-in prices where no cost is given. Given costs are in target forwards."""
    forward_ms = TARGET.forward if found is None else found.target_ms
    target = TARGET.scaled(forward_ms / TARGET.forward)
    draft = DRAFT.scaled(forward_ms / TARGET.forward)
    if verify_cost is not None:
        target = Prices(forward_ms * (1 - verify_cost), forward_ms * verify_cost, target.cached)
    if draft_cost is not None:
        draft = DRAFT.scaled(draft_cost * forward_ms / DRAFT.forward)
    alpha = SIMULATED_ALPHA if alpha is None else alpha
    load = Load(num_users, alpha, k or SIMULATED_K, target, draft)
    return load if wire is None else replace(load, wire_ms=wire * forward_ms / 2)


def simulated_record(load: Load, outcomes: dict[Deployment, Outcome], found: Measured | None) -> dict[str, Any]:
    rows = [{"deployment": str(each), **asdict(each), **asdict(outcome)} for each, outcome in outcomes.items()]
    measured = None if found is None else asdict(found)
    return {**asdict(load), "best": str(best(outcomes)), "deployments": rows, "measured": measured}


def show_machines(console: Console, load: Load, outcomes: dict[Deployment, Outcome], found: Measured | None) -> None:
    table = Table(title=f"{load.num_users} users: tokens/s of an answer, ms to its first token", title_justify="left")
    table.add_column("machines")
    for heading in ("tokens/s p50", "p5", "first token p50", "p99"):
        table.add_column(heading, justify="right")
    chosen = best(outcomes)
    for each, outcome in outcomes.items():
        cells = (outcome.speed, outcome.slow_speed, outcome.first_ms, outcome.slow_first_ms)
        table.add_row(str(each), *(f"{cell:.0f}" for cell in cells), style="bold green" if each == chosen else None)
    console.print(table)
    console.print(assumptions(load, found), style="dim", markup=False)
    console.print(f"\n{about_the_best(outcomes)}", style="bold", markup=False)


def assumptions(load: Load, found: Measured | None) -> str:
    source = "Llama 3.2 3B and 1B on an H100, computed from 65 % of its bandwidth" if found is None else "--measure"
    return (
        f"assumed: alpha {load.alpha:.3g}, k {load.k}; target forward {load.target.forward:.3g} ms, draft step "
        f"{load.draft.forward:.3g}, each further token {load.target.token:.2g} and {load.draft.token:.2g} ({source}, or your "
        f"flags); {load.wire_ms:.2g} ms of messages per server and round; {load.think_s:.0f} s between an answer and the next "
        f"question, {TURNS[0]} to {TURNS[1]} turns of {QUESTION_TOKENS} and {ANSWER_TOKENS} tokens after a system prompt of "
        f"{SYSTEM_TOKENS}; 80 GB machines; one seed"
    )


def about_the_best(outcomes: dict[Deployment, Outcome]) -> str:
    chosen = best(outcomes)
    plain = next(outcome.speed for each, outcome in outcomes.items() if each.num_drafts == 0)
    pairs = next(outcome.speed for each, outcome in outcomes.items() if each.is_paired)
    speed = outcomes[chosen].speed
    if chosen.num_drafts == 0:
        return f"Best: {chosen}. Nothing else is more than {NOISE:.0%} faster."
    against = f"{speed / plain:.2f} times the speed without drafts"
    against += "" if chosen.is_paired else f", {speed / pairs:.2f} times that of pairs"
    return f"Best: {chosen}, {against}. Differences below {NOISE:.0%} are noise."


def as_record(made: Forecast, found: Measured | None) -> dict[str, Any]:
    best, rows = made.best, made.rows()
    return {
        "alpha": made.alpha,
        "draft_cost": made.draft_cost,
        "wire": made.wire,
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
    best, rows, has_wire = made.best, made.rows(), made.wire > 0
    table = Table(title=f"alpha {made.alpha:.3g}, {made.costs}", title_justify="left")
    headings = ("k", "accepted", "tokens", "speed-up", *(["over k = 0"] if has_wire else []), "operations")
    for heading in (*headings, "target reads"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [str(row["k"]), f"{row['accepted_per_round']:.2f}", f"{row['tokens_per_round']:.2f}"]
        cells += [f"{row['speedup']:.2f}x"] + ([f"{row['speedup_over_k0']:.2f}x"] if has_wire else [])
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
        f"Measured with k = {found.k}: {found.accepted} of {found.decided} decided drafts accepted; a target forward "
        f"takes {found.target_ms:.3g} ms, a draft step {found.draft_cost:.3g} and a round's wire {found.wire:.3g} of it; "
        f"{found.speedup:.2f} times the speed without speculation."
        f"\nVerifying {found.k} drafts takes {found.verify_cost:.3g} plain forwards here"
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
    if made.wire > 0:
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
    """Applies corollary 3.9 with wire and verification: if any number of drafts pays, one does."""
    limit = made.alpha * (1 + made.wire) - made.verify_cost
    if limit <= 0:
        return "it never pays, however fast the draft model is."
    return (
        f"it pays only if a draft step takes less than {limit:.3g} target forwards, and it takes {made.draft_cost:.3g}."
    )


def _measure(connect: Callable[[], AsyncClient], path: Path | None, max_tokens: int, temperature: float) -> Measured:
    require(max_tokens >= MIN_TOKENS, "--max-tokens", max_tokens, f">= {MIN_TOKENS}")
    require(0 <= temperature < math.inf, "--temperature", temperature, "a finite number >= 0")
    given = None if path is None else [record.prompt for record in read_prompts("--prompts", path)]
    return options.run(measure(connect, given or BUILT_IN_PROMPTS, max_tokens, temperature))


def _write_pictures(made: Forecast, png: Path | None, folder: Path | None) -> None:
    wanted = (("--png", png, plots.write_png), ("--figures", folder, plots.write_figures))
    for name, path, write in wanted:
        if path is None:
            continue
        try:
            write(path, made)
        except OSError as error:
            raise ConfigError(f"{name} {path}: {error.strerror or error}") from error
