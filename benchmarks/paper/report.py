"""Runs the parts in order, then makes tables, figures and their page."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper import figures, more_tables, tables, trace_figures
from benchmarks.paper.alpha import measure_alpha, write_texts
from benchmarks.paper.ngram_memory import measure_ngram_memory, ngram_memory
from benchmarks.paper.results import Parts, Setup
from benchmarks.paper.speeds import Speed, speeds_of
from benchmarks.paper.table import Table
from benchmarks.paper.walltime import measure_traces, measure_walltime, measure_walltime_int8

# Walltimes last: they are what a busy machine disturbs.
PARTS = ("texts", "alpha-0", "alpha-1", "ngram-memory", "traces", "walltime", "walltime-int8")


def write_report(
    out: Path, parts: Parts, setup: Setup, count: int, walltime_tokens: int, only: Collection[str]
) -> None:
    """Measures what is missing of `only`; writes README.md, a CSV file per table, tables.json and figures into `out`."""

    def texts() -> dict[str, Any]:
        return parts.get("texts", lambda: write_texts(setup))

    measures: dict[str, Callable[[], Any]] = {
        "texts": lambda: write_texts(setup),
        "alpha-0": lambda: measure_alpha(setup, texts(), 0),
        "alpha-1": lambda: measure_alpha(setup, texts(), 1),
        "ngram-memory": lambda: measure_ngram_memory(texts()),
        "traces": lambda: measure_traces(setup),
        "walltime": lambda: measure_walltime(setup, count, walltime_tokens),
        "walltime-int8": lambda: measure_walltime_int8(setup, count, walltime_tokens),
    }
    found = {name: parts.get(name, measures[name]) for name in PARTS if name in only or parts.has(name)}
    alphas = {temperature: found[f"alpha-{temperature}"] for temperature in (0, 1) if f"alpha-{temperature}" in found}
    timed = [found[name] for name in ("walltime", "walltime-int8") if name in found]
    speeds = speeds_of(*timed)
    made = make_tables(alphas, speeds, found.get("traces"))
    if "ngram-memory" in found:
        made.append(ngram_memory(found["ngram-memory"]))
    for table in made:
        table.write_csv(out)
    as_json = [{"name": t.name, "title": t.title, "columns": t.columns, "rows": t.rows} for t in made]
    (out / "tables.json").write_text(json.dumps(as_json, indent=1, ensure_ascii=False) + "\n")
    drawn = draw(out, speeds, found.get("traces"))
    about = [f"{name}: {parts.about(name)}" for name in found]
    (out / "README.md").write_text(page(setup, about, made, drawn))
    print(f"wrote {out / 'README.md'}")


def make_tables(alphas: dict[int, Any], speeds: Sequence[Speed], traces: dict[str, Any] | None) -> list[Table]:
    """Returns the tables for which there are figures."""
    made = [tables.table_1()]
    if speeds:
        made.append(tables.table_2(speeds))
    if len(alphas) == 2:
        made.append(tables.table_3(alphas))
    if speeds:
        made.append(tables.table_4(speeds))
    if len(alphas) == 2:
        made.append(tables.table_5(alphas, cost_of_the_draft(speeds)))
        made += [more_tables.appendix_a2(alphas[1]), more_tables.by_kind(alphas)]
    if speeds:
        made.append(more_tables.accepted_of_four(speeds))
    if traces:
        made.append(more_tables.entropy_steps(traces["entropy"]))
    return made


def cost_of_the_draft(speeds: Sequence[Speed]) -> float:
    """Returns c of the draft model, the mean over its rows; 0 if it was not timed."""
    costs = [each.c for each in speeds if each.drafter == "draft model"]
    return sum(costs) / len(costs) if costs else 0.0


def draw(out: Path, speeds: Sequence[Speed], traces: dict[str, Any] | None) -> list[str]:
    """Returns the names of the figures, in order."""
    figures.draw_figure_2(out, speeds)
    figures.draw_figure_3(out, speeds)
    figures.draw_figure_4(out, speeds)
    names = ["figure_2", "figure_3", "figure_4"]
    if traces:
        trace_figures.draw_figure_1(out, traces["figure 1"])
        trace_figures.draw_figure_5(out, {name: traces[name] for name in ("gamma 7", "gamma 3", "standard")})
        names = ["figure_1", *names, "figure_5"]
    return names


def page(setup: Setup, about: Sequence[str], made: Sequence[Table], drawn: Sequence[str]) -> str:
    head = [
        "# The paper's tables and figures",
        "",
        "Tables 1 to 5 and figures 1 to 5 of Leviathan, Kalman and Matias "
        "([2211.17192](https://arxiv.org/abs/2211.17192)), measured for a pair of models, next to the paper's own numbers. "
        "`python -m benchmarks.paper` writes this page. Each table is also a CSV file; [tables.json](tables.json) has all "
        "of them, and [parts](parts) the raw measurements.",
        "",
        f"Target `{setup.target}` (quantization {setup.target_quantization}), draft `{setup.draft}`, prompts "
        f"`{setup.prompts}`. ± is one standard error.",
        "",
        *(f"- {line}" for line in about),
    ]
    pictures = [f"![{name.replace('_', ' ').capitalize()}]({name}.png)" for name in drawn]
    return "\n\n".join(["\n".join(head), *(table.markdown() for table in made), "## Figures", *pictures]) + "\n"
