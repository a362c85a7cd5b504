"""Figures of generations as a table."""

from rich.console import Console
from rich.table import Table

from paceline.client import Completion, Finish


def tokens_per_second(completions: list[Completion]) -> float:
    """Generated tokens over wall time, prompts included, one after the other."""
    finishes = _finishes(completions)
    total_ms = sum(finish.timing.total_ms for finish in finishes)
    return 1e3 * sum(finish.completion_tokens for finish in finishes) / total_ms if total_ms else 0.0


def print_stats(completions: list[Completion], title: str = "rounds") -> None:
    """A table on stderr: counts are sums, times are means."""
    finishes = _finishes(completions)
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    rounds = sum(finish.speculation.rounds for finish in finishes)
    proposed = sum(finish.speculation.proposed for finish in finishes)
    accepted = sum(finish.speculation.accepted for finish in finishes)
    tokens = sum(finish.completion_tokens for finish in finishes)
    table.add_row("tokens", str(tokens))
    table.add_row("tokens per second", f"{tokens_per_second(completions):.1f}")
    table.add_row("rounds", str(rounds))
    if proposed:
        table.add_row("accepted / proposed", f"{accepted} / {proposed} ({accepted / proposed:.0%})")
        for position, rate in enumerate(_per_position(finishes), 1):
            table.add_row(f"  position {position}", f"{rate:.0%}")
        mean = sum(f.speculation.mean_acceptance_length * f.speculation.rounds for f in finishes) / max(1, rounds)
        table.add_row("mean acceptance length", f"{mean:.2f} tokens")
    for name in ("ttft", "total", "draft", "target", "queued", "wire"):
        value = sum(getattr(finish.timing, f"{name}_ms") for finish in finishes) / len(finishes)
        label = "time to first token" if name == "ttft" else f"time, {name}"
        table.add_row(label, f"{value:.0f} ms")
    synthetic = [f.speculation.synthetic_acceptance for f in finishes if f.speculation.synthetic_acceptance is not None]
    if synthetic:
        table.add_row("synthetic acceptance", f"{synthetic[0]:g} (a coin decided: this is no real text)")
    if lenience := next((f.speculation.lenience for f in finishes if f.speculation.lenience), None):
        table.add_row("lenience", f"{lenience:g} (the output's law is not quite the target's)")
    table.add_row("seed", ", ".join(str(finish.seed) for finish in finishes[:3]))
    Console(stderr=True).print(table)


def _finishes(completions: list[Completion]) -> list[Finish]:
    return [completion.finish for completion in completions if completion.finish is not None]


def _per_position(finishes: list[Finish]) -> list[float]:
    """Accepted over proposed at each draft position."""
    longest = max(len(finish.speculation.proposed_per_position) for finish in finishes)
    rates = []
    for index in range(longest):
        proposed = [f.speculation.proposed_per_position[index:][:1] for f in finishes]
        accepted = [f.speculation.accepted_per_position[index:][:1] for f in finishes]
        rates.append(sum(map(sum, accepted)) / max(1, sum(map(sum, proposed))))
    return rates
