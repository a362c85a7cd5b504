"""`paceline plan`: should I speculate, and how far? The theory, with a plot."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline.checks import require
from paceline.cli import options, plot
from paceline.cli.measure import BUILT_IN_PROMPTS, MIN_TOKENS, Measured, measure
from paceline.client import AsyncClient
from paceline.errors import ConfigError, InvalidArgument
from paceline.prompts import read_prompts
from paceline.sampling import MAX_DRAFT_TOKENS
from paceline.theory import best_k, operations, speedup, tokens_per_round

# From here on a verification is said to cost more than the theory has it cost.
NOTED_VERIFY_COST = 1.1


@dataclass(frozen=True, slots=True)
class Plan:
    """The theory at one alpha and one set of costs, for k = 0 to `longest`. Costs in target forwards."""

    alpha: float
    draft_cost: float
    wire: float
    operations_cost: float
    longest: int

    @property
    def best(self) -> int:
        return best_k(self.alpha, self.draft_cost, self.wire, self.longest)

    def speed(self, k: int) -> float:
        """Over plain decoding in one process, which has no wire."""
        return speedup(self.alpha, k, self.draft_cost, self.wire)

    def gain(self, k: int) -> float:
        """Over plain decoding by the same services, whose rounds have their wire too."""
        return self.speed(k) / self.speed(0)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each k."""
        return [
            {
                "k": k,
                "tokens_per_round": tokens_per_round(self.alpha, k),
                "speedup": self.speed(k),
                "speedup_over_k0": self.gain(k),
                "operations": operations(self.alpha, k, self.operations_cost),
            }
            for k in range(self.longest + 1)
        ]


def plan(
    alpha: Annotated[float | None, typer.Option(help="chance that a draft token is accepted, in [0, 1]")] = None,
    draft_cost: Annotated[float | None, typer.Option(help="time of a draft step, in target forwards")] = None,
    wire: Annotated[
        float | None, typer.Option(help="a round's time for messages, in target forwards; default: 0, or as measured")
    ] = None,
    operations_cost: Annotated[
        float | None, typer.Option(help="arithmetic of a draft step, in target rows; default: the draft cost")
    ] = None,
    max_draft_tokens: Annotated[int, typer.Option(help=f"largest k, in [1, {MAX_DRAFT_TOKENS}]")] = MAX_DRAFT_TOKENS,
    png: Annotated[Path | None, typer.Option(help="write the plot to this .png file")] = None,
    measured: Annotated[
        bool, typer.Option("--measure", help="take alpha and the costs that are not given from running services")
    ] = False,
    address: options.Address = options.DEFAULT_ADDRESS,
    api_key_file: options.ApiKeyFile = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    prompts: Annotated[
        Path | None, typer.Option(help=f"with --measure, a file of prompts: {options.PROMPT_FORMS}")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help=f"with --measure: tokens a prompt, at least {MIN_TOKENS}")] = 64,
    temperature: Annotated[float, typer.Option(help="with --measure: 0 is greedy")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """Says whether to speculate and how far, and what to expect of it."""
    check_costs(alpha, draft_cost, wire, operations_cost)
    require(1 <= max_draft_tokens <= MAX_DRAFT_TOKENS, "--max-draft-tokens", max_draft_tokens,
            f"in [1, {MAX_DRAFT_TOKENS}]")  # fmt: skip
    options.require_file("--png", png, ".png")
    if prompts is not None and not measured:
        raise InvalidArgument("--prompts needs --measure: the theory asks no model")
    found = None
    if measured:
        connect = options.connector(address, api_key_file, options.read_tls(tls_ca, tls_cert, tls_key))
        found = _measure(connect, prompts, max_tokens, temperature)
        alpha = found.alpha if alpha is None else alpha
        draft_cost = found.draft_cost if draft_cost is None else draft_cost
        wire = found.wire if wire is None else wire
    if alpha is None or draft_cost is None:
        name, allowed = ("--alpha", "a number in [0, 1]") if alpha is None else ("--draft-cost", "a number >= 0")
        raise InvalidArgument(f"{name} is missing; give {allowed}, or --measure")
    made = Plan(
        alpha, draft_cost, wire or 0.0, draft_cost if operations_cost is None else operations_cost, max_draft_tokens
    )
    if as_json:
        print(json.dumps(as_record(made, found)))
    else:
        show(Console(highlight=False), made, found)
    if png is not None:
        _write_png(png, made)


def check_costs(
    alpha: float | None, draft_cost: float | None, wire: float | None, operations_cost: float | None
) -> None:
    """Raises InvalidArgument naming the flag and its range; NaN is in no range."""
    require(alpha is None or 0 <= alpha <= 1, "--alpha", alpha, "in [0, 1]")
    costs = {"--draft-cost": draft_cost, "--wire": wire, "--operations-cost": operations_cost}
    for name, cost in costs.items():
        require(cost is None or 0 <= cost < math.inf, name, cost, "a finite number >= 0")


def as_record(made: Plan, found: Measured | None) -> dict[str, Any]:
    """The object of `--json`."""
    best = made.best
    return {
        "alpha": made.alpha,
        "draft_cost": made.draft_cost,
        "wire": made.wire,
        "operations_cost": made.operations_cost,
        "speculate": best > 0,
        "best_k": best,
        "speedup": made.speed(best),
        "speedup_over_k0": made.gain(best),
        "rounds": made.rows(),
        "measured": None if found is None else asdict(found),
    }


def advice(made: Plan) -> str:
    """What to do, in one sentence."""
    best = made.best
    if best == 0:
        # One draft token pays where any number does: corollary 3.9, with the wire in every round.
        limit = made.alpha * (1 + made.wire)
        return (
            f"Do not speculate: with {made.alpha:.0%} of the drafts accepted, it pays only where a draft step "
            f"takes less than {limit:.3g} target forwards, and it takes {made.draft_cost:.3g}."
        )
    tokens = f"{best} draft token{'s' if best > 1 else ''} a round"
    most = " (the most allowed)" if best == made.longest else ""
    expected = f"expect {made.gain(best):.2f} times the speed of plain decoding"
    if made.wire > 0:
        expected += f" by the same services, {made.speed(best):.2f} times that of one process without a wire"
    return f"Speculate with {tokens}{most}: {expected}."


def show(console: Console, made: Plan, found: Measured | None) -> None:
    """Table, plot and advice."""
    if found is not None:
        console.print(measured_text(found), end="\n\n", markup=False)
    table = Table(
        title=f"alpha {made.alpha:.3g}, draft cost {made.draft_cost:.3g}, wire {made.wire:.3g}", title_justify="left"
    )
    for heading in ("k", "tokens a round", "speed-up", *(["over k = 0"] if made.wire > 0 else []), "operations"):
        table.add_column(heading, justify="right")
    best = made.best
    for row in made.rows():
        cells = [str(row["k"]), f"{row['tokens_per_round']:.2f}", f"{row['speedup']:.2f}x"]
        cells += [f"{row['speedup_over_k0']:.2f}x"] if made.wire > 0 else []
        table.add_row(*cells, f"{row['operations']:.2f}x", style="bold green" if row["k"] == best else None)
    console.print(table)
    console.print("\nspeed-up against k\n", style="dim")
    console.print(plot.terminal_plot([row["speedup"] for row in made.rows()], best))
    console.print(f"\n{advice(made)}", style="bold", markup=False)


def measured_text(found: Measured) -> str:
    """What the services showed, and where they are not as the theory has them."""
    text = (
        f"Measured with k = {found.k}: {found.accepted} of {found.decided} decided drafts accepted; a target forward "
        f"takes {found.target_ms:.3g} ms, a draft step {found.draft_cost:.3g} and a round's wire {found.wire:.3g} of it; "
        f"{found.speedup:.2f} times the speed without speculation."
    )
    if found.verify_cost >= NOTED_VERIFY_COST:
        text += (
            f"\nVerifying {found.k} drafts takes {found.verify_cost:.3g} plain forwards here. The theory counts 1, "
            "so the speeds below are too high."
        )
    return text


def _measure(connect: Callable[[], AsyncClient], path: Path | None, max_tokens: int, temperature: float) -> Measured:
    require(max_tokens >= MIN_TOKENS, "--max-tokens", max_tokens, f">= {MIN_TOKENS}")
    require(0 <= temperature < math.inf, "--temperature", temperature, "a finite number >= 0")
    given = None if path is None else [record.prompt for record in read_prompts("--prompts", path)]
    return options.run(measure(connect, given or BUILT_IN_PROMPTS, max_tokens, temperature))


def _write_png(path: Path, made: Plan) -> None:
    try:
        plot.write_png(path, made.alpha, made.draft_cost, made.wire, made.longest)
    except OSError as error:
        raise ConfigError(f"--png {path}: {error.strerror or error}") from error
