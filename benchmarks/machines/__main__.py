"""Simulated users of N machines: pairs, targets and drafts apart, and no drafts.

python -m benchmarks.machines N [--users 1000] [--alpha 0.8] [--k 4] [--target-ms 2.97] [--draft-cost 0.39] [--rpc-cost 0.51]
                                [--verify-cost 0.007] [--json]

Costs are in target forward passes; those that are not given are an H100's. `paceline plan --measure --json` measures your own.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machines.simulation import (
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
from paceline.checks import require
from paceline.errors import PacelineError
from paceline.speculation_params import MAX_DRAFT_TOKENS

USERS_PER_MACHINE = 100
MAX_MACHINES, MAX_USERS = 64, 10_000


def main(flags: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", type=int, metavar="N")
    parser.add_argument("--users", type=int, help=f"default: {USERS_PER_MACHINE} per machine")
    parser.add_argument("--alpha", type=float, default=0.8, help="chance that a draft token is accepted")
    parser.add_argument("--k", type=int, default=4, help="draft tokens of every round")
    parser.add_argument("--target-ms", type=float, default=TARGET.forward, help="a target forward pass of one token")
    parser.add_argument("--draft-cost", type=float, help="a draft step, in target forward passes")
    parser.add_argument("--rpc-cost", type=float, help="a round's messages, in target forward passes")
    parser.add_argument("--verify-cost", type=float, help="what a draft token adds to a target forward pass")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(flags)
    try:
        check(given)
    except PacelineError as error:
        parser.error(str(error))
    load = load_of(given)
    outcomes = {each: simulate(each, load) for each in deployments(given.machines)}
    if given.json:
        print(json.dumps(record_of(load, outcomes)))
    else:
        show(Console(highlight=False), load, outcomes)


def check(given: argparse.Namespace) -> None:
    require(1 <= given.machines <= MAX_MACHINES, "N", given.machines, f"in [1, {MAX_MACHINES}]")
    require(given.users is None or 1 <= given.users <= MAX_USERS, "--users", given.users, f"in [1, {MAX_USERS}]")
    require(0 <= given.alpha <= 1, "--alpha", given.alpha, "in [0, 1]")
    require(1 <= given.k <= MAX_DRAFT_TOKENS, "--k", given.k, f"in [1, {MAX_DRAFT_TOKENS}]")
    require(0 < given.target_ms < float("inf"), "--target-ms", given.target_ms, "a finite number > 0")
    for name in ("draft_cost", "rpc_cost", "verify_cost"):
        cost = getattr(given, name)
        flag = f"--{name.replace('_', '-')}"
        require(cost is None or 0 <= cost < float("inf"), flag, cost, "a finite number >= 0")


def load_of(given: argparse.Namespace) -> Load:
    """Returns the built-in prices, scaled to the target's forward pass, except where a cost is given."""
    forward_ms = given.target_ms
    target, draft = (each.scaled(forward_ms / TARGET.forward) for each in (TARGET, DRAFT))
    if given.verify_cost is not None:
        target = Prices(forward_ms * (1 - given.verify_cost), forward_ms * given.verify_cost, target.cached)
    if given.draft_cost is not None:
        draft = DRAFT.scaled(given.draft_cost * forward_ms / DRAFT.forward)
    load = Load(given.users or given.machines * USERS_PER_MACHINE, given.alpha, given.k, target, draft)
    # A round has two servers.
    return load if given.rpc_cost is None else replace(load, rpc_ms=given.rpc_cost * forward_ms / 2)


def record_of(load: Load, outcomes: dict[Deployment, Outcome]) -> dict[str, Any]:
    rows = [{"deployment": str(each), **asdict(each), **asdict(outcome)} for each, outcome in outcomes.items()]
    return {**asdict(load), "best": str(best(outcomes)), "deployments": rows}


def show(console: Console, load: Load, outcomes: dict[Deployment, Outcome]) -> None:
    table = Table(title=f"{load.num_users} users: tokens/s of an answer, ms to its first token", title_justify="left")
    table.add_column("machines")
    for heading in ("tokens/s p50", "p5", "first token p50", "p99"):
        table.add_column(heading, justify="right")
    chosen = best(outcomes)
    for each, outcome in outcomes.items():
        cells = (outcome.speed, outcome.slow_speed, outcome.first_ms, outcome.slow_first_ms)
        table.add_row(str(each), *(f"{cell:.0f}" for cell in cells), style="bold green" if each == chosen else None)
    console.print(table)
    console.print(assumptions(load), style="dim", markup=False)
    console.print(f"\n{about_the_best(outcomes)}", style="bold", markup=False)


def assumptions(load: Load) -> str:
    return (
        f"assumed: alpha {load.alpha:.3g}, k {load.k}; target forward pass {load.target.forward:.3g} ms, draft step "
        f"{load.draft.forward:.3g}, each further token {load.target.token:.2g} and {load.draft.token:.2g} (Llama 3.2 3B and "
        f"1B on an H100, computed from 65 % of its bandwidth, or your flags); {load.rpc_ms:.2g} ms of messages per server "
        f"and round; {load.think_s:.0f} s between an answer and the next question, {TURNS[0]} to {TURNS[1]} turns of "
        f"{QUESTION_TOKENS} and {ANSWER_TOKENS} tokens after a system prompt of {SYSTEM_TOKENS}; 80 GB machines; one seed"
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


if __name__ == "__main__":
    main()
