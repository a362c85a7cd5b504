"""How soon the default is right again after other work has taken a core for a while.

python -m benchmarks.taken_core [--pair qwen2.5-coder] [--prompts FILE.jsonl] [--tokens 48] [--seconds 60 60 120] [--png FILE]

Plain decoding, a fixed mode and the default take turns at the same prompts, one request at a time. `--seconds` says how long to
measure before other work takes a core, while it has the core, and afterwards. Each answer's time after its first token counts.
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.modes import READING, READING_TOKENS
from benchmarks.never_below import MODES
from benchmarks.services import OWN_PROMPTS
from paceline.catalog.known_models import PAIRS
from paceline.client import AsyncClient
from paceline.prompts import read_prompts
from paceline.sampling_params import SamplingParams

FIXED = "model, 3"
SHOWN = ("plain", FIXED, "default")
PHASES = ("before", "with other work", "after")
BUSY = """
import contextlib, os
with contextlib.suppress(OSError):
    os.nice(-10)
while True:
    pass
"""
# Averaged over in the picture.
WINDOW_S = 20.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt's seconds for the tokens after the first, by mode, and the drafts of the default's rounds."""

    phase: str
    at_s: float
    seconds: dict[str, float]
    drafts_per_round: float


async def take_turn(client: AsyncClient, prompt: str, tokens: int, phase: str, begin_s: float) -> Turn:
    seconds, drafts_per_round = {}, 0.0
    at_s = time.perf_counter() - begin_s
    for name in SHOWN:
        await client.complete(prompt, SamplingParams(max_tokens=READING_TOKENS), READING, cache_salt=name)
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        answer = await client.complete(prompt, sampling, MODES[name], cache_salt=name)
        assert answer.finish is not None
        timing, speculation = answer.finish.timing, answer.finish.speculation
        seconds[name] = (timing.total_ms - timing.ttft_ms) / 1e3
        drafts_per_round = speculation.proposed / speculation.rounds
    return Turn(phase, at_s, seconds, drafts_per_round)


def busy_core() -> "subprocess.Popen[bytes]":
    """Starts work that takes one core, before others if it has the right to."""
    return subprocess.Popen([sys.executable, "-c", BUSY])


def over_plain(turns: Sequence[Turn], name: str) -> float:
    return sum(turn.seconds["plain"] for turn in turns) / sum(turn.seconds[name] for turn in turns)


def report(turns: Sequence[Turn]) -> None:
    for phase, some in itertools.groupby(turns, lambda turn: turn.phase):
        of_phase = list(some)
        halves = of_phase[: len(of_phase) // 2], of_phase[len(of_phase) // 2 :]
        for when, half in zip(("first", "second"), halves, strict=True):
            if half:
                drafts = sum(turn.drafts_per_round for turn in half) / len(half)
                print(
                    f"{phase}, {when} half, {len(half)} answers: default {over_plain(half, 'default'):.2f} x, "
                    f"{FIXED} {over_plain(half, FIXED):.2f} x, {drafts:.1f} drafts a round of the default"
                )


def write_png(path: Path, turns: Sequence[Turn], taken_s: tuple[float, float], title: str) -> None:
    """Draws both modes over plain decoding, by time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.axvspan(*taken_s, color="0.9", label="other work has a core")
    axes.axhline(1.0, color="black", linewidth=1)
    for name in SHOWN[1:]:
        near = [[other for other in turns if abs(other.at_s - turn.at_s) <= WINDOW_S / 2] for turn in turns]
        axes.plot([turn.at_s for turn in turns], [over_plain(some, name) for some in near], label=name)
    axes.set(title=title, xlabel="seconds", ylabel=f"over plain, {WINDOW_S:.0f} s", ylim=(0, None))
    axes.legend(loc="lower right")
    figure.savefig(path, format="png", dpi=80)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=["embedded", *sorted(PAIRS)], default="embedded")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seconds", type=float, nargs=3, default=[60.0, 60.0, 120.0])
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    prompts = itertools.cycle(record.text for record in read_prompts("--prompts", arguments.prompts))
    target, draft = PAIRS.get(arguments.pair, (MODEL, DRAFT))
    turns = list[Turn]()
    async with embedded_pair(draft, target={"model": target}) as (_, client):
        for _ in range(3):
            await take_turn(client, next(prompts), arguments.tokens, "", 0.0)
        begin_s = time.perf_counter()
        ends_s = list(itertools.accumulate(arguments.seconds))
        for phase, end_s in zip(PHASES, ends_s, strict=True):
            other = busy_core() if phase == PHASES[1] else None
            try:
                while time.perf_counter() - begin_s < end_s:
                    turns.append(await take_turn(client, next(prompts), arguments.tokens, phase, begin_s))
            finally:
                if other is not None:
                    other.kill()
                    other.wait()
    report(turns)
    if arguments.png is not None:
        write_png(arguments.png, turns, (ends_s[0], ends_s[1]), f"{arguments.pair}, {os.cpu_count()} cores")


if __name__ == "__main__":
    asyncio.run(main())
