"""Further tables: appendix A.2, kinds of text, accepted drafts per run, the entropy rule."""

from collections.abc import Sequence
from typing import Any

from benchmarks.paper import published
from benchmarks.paper.alpha import DRAFTERS, LOOK_UPS, TEMPERATURES
from benchmarks.paper.estimators import clustered
from benchmarks.paper.speeds import Speed
from benchmarks.paper.table import Cell, Table
from benchmarks.paper.tables import alpha_of
from paceline.theory import tokens_per_round


def appendix_a2(part: dict[str, Any]) -> Table:
    """Compares rejection sampling with speculative sampling at temperature 1."""
    rows = [
        (
            drafter, alpha_of(part, drafter), alpha_of(part, drafter, "accepted"),
            alpha_of(part, drafter, "rejection"), alpha_of(part, drafter, "rejection accepted"),
        )
        for drafter in DRAFTERS
        if drafter not in LOOK_UPS
    ]  # fmt: skip
    columns = ("drafter", "speculative sampling", "counted", "rejection sampling", "counted")
    note = (
        "The chance that a draft is accepted, on the same p and q at T = 1: sum min(p, q), and 1 / M with M = max p / q. "
        "In a vocabulary of tens of thousands, some token is always many times as likely under p as under q, so rejection "
        "sampling accepts next to nothing. A lookup's q is 0 except for one token, so its M is unbounded."
    )
    return Table("appendix_a2", "Appendix A.2: rejection sampling", columns, rows, [note])


def by_kind(parts: dict[int, dict[str, Any]]) -> Table:
    """Lists alpha of lookups and of the draft model by kind of text."""
    drafters = [*LOOK_UPS, "draft model"]
    kinds = sorted(set(parts[0]["categories"]))
    rows: list[tuple[Cell, ...]] = []
    for kind in kinds:
        row: list[Cell] = [kind]
        for drafter in drafters:
            for temperature in TEMPERATURES:
                part = parts[temperature]
                at = [index for index, category in enumerate(part["categories"]) if category == kind]
                sums = part["drafters"][drafter]["overlap"]
                row.append(clustered([sums[index] for index in at], [part["tokens"][index] for index in at]))
        rows.append(tuple(row))
    columns = ("kind", *(f"{drafter}, T = {temperature}" for drafter in drafters for temperature in TEMPERATURES))
    said = "; ".join(f"{rate}: {texts}" for rate, texts in published.AKUNU_KINDS.items())
    note = f"What akunu's text says about n-grams, without measurements. {said}."
    return Table("by_kind", "alpha by kind of text", columns, rows, [note])


def accepted_of_four(speeds: Sequence[Speed]) -> Table:
    """Accepted drafts per run: equation 1 minus the token that a run always yields."""
    drafts = published.AKUNU_DRAFTS
    rows: list[tuple[Cell, ...]] = [
        (f"D = {drafts}", alpha, tokens_per_round(alpha, drafts) - 1, stated)
        for alpha, stated in published.AKUNU_ACCEPTED.items()
    ]
    rows += [
        (f"{each.drafter}, {each.task}, T = {each.temperature}, D = {each.gamma}", each.alpha.mean,
         tokens_per_round(each.alpha.mean, each.gamma) - 1, each.tokens_a_run - 1)
        for each in speeds
    ]  # fmt: skip
    columns = ("", "alpha", "equation 1", "akunu's text, or measured")
    note = "akunu's sum at alpha 0.7 and 0.9 is 1.77 and 3.10; its text prints 2.05 and 3.28."
    return Table("accepted", "Accepted drafts of a run", columns, rows, [note])


def entropy_steps(rounds: Sequence[dict[str, Any]]) -> Table:
    """The entropy rule (EGAG): H at each step of a run and the drafts that it allows."""
    rows: list[tuple[Cell, ...]] = [
        (each["round"], len(each["proposed"]), each["num_accepted"], " ".join(f"{h:.2f}" for h in each["entropies"]))
        for each in rounds
        if each["round"] > 0
    ]
    note = "k from 1 to 8, k = round(max - (max - min) H), H the smoothed entropy over ln(vocabulary); here H is each step's own."
    return Table("entropy", "The entropy rule, run by run", ("run", "k", "accepted", "H by step"), rows, [note])
