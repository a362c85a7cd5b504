"""Whether the default is ever slower than plain decoding: by kind of prompt, requests at once, temperature and kind of start.

python -m benchmarks.never_below --out FILE.jsonl [--png FILE] [--pair qwen2.5-coder] [--prompts FILE.jsonl] [--tokens 64]
    [--kinds code maths] [--groups 2] [--at-once 1 8 32 64] [--temperatures 0 0.7] [--starts quiet noisy]

Each group of requests is of one kind. It goes through plain decoding twice, which shows the noise, two fixed modes and the default,
in a new order each time; prompts are read before. In a noisy start other programs use all cores until the servers have answered
for the first time. One at a time, the time after the first token counts; of several, the time until the last one ends, and beside
it the mean of their own times, in which those that end earlier count as well. FILE.jsonl gets a line for each group, and what it
has is not measured again: the command goes on where it was stopped.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.modes import READING, READING_TOKENS, answer, by_kind
from benchmarks.services import OWN_PROMPTS, PLAIN, SPECULATIVE
from paceline.catalog.known_models import PAIRS
from paceline.client import AsyncClient
from paceline.prompts import read_prompts
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

MODES = {
    "plain": PLAIN,
    "plain again": PLAIN,
    "model, 3": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3),
    "suffix, adaptive": SpeculationParams(drafter=Drafter.SUFFIX),
    "default": SPECULATIVE,
}
# What is measured at once: temperature and number of requests; and what a line of the file has besides.
Cell = tuple[float, int]
Line = dict[str, Any]


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Table:
    """The file of results: a line for each group."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: list[Line] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def has(self, **key: Any) -> bool:
        return any(key.items() <= line.items() for line in self.lines)

    def add(self, line: Line) -> None:
        self.lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def cells(self) -> dict[tuple[str, str, Cell], list[Line]]:
        """Returns the lines by pair, start and cell."""
        cells = defaultdict(list)
        for line in self.lines:
            cells[line["pair"], line["start"], (line["temperature"], line["at_once"])].append(line)
        return cells


async def measure(
    client: AsyncClient, prompts: Sequence[str], sampling: SamplingParams, salt: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the seconds of all, and the mean of each one's, by mode."""
    found, means = {}, {}
    for name in random.sample(list(MODES), len(MODES)):
        own = f"{salt}, {name}"
        await answer(client, prompts, replace(sampling, max_tokens=READING_TOKENS), READING, own)
        whole_s, each_s = await answer(client, prompts, sampling, MODES[name], own)
        found[name] = each_s[0] if len(prompts) == 1 else whole_s
        means[name] = mean(each_s)
    return found, means


def report(table: Table) -> None:
    for (pair, start, (temperature, at_once)), lines in table.cells().items():
        kinds = [line["kind"] for line in lines]
        plain = [line["seconds"]["plain"] for line in lines]
        print(
            f"\n{pair}, {start} start, {at_once} at once, temperature {temperature}, {len(lines)} groups, over plain:"
        )
        by_means = {
            name: sum(line["means"]["plain"] for line in lines) / sum(line["means"][name] for line in lines)
            for name in MODES
        }
        for name in list(MODES)[1:]:
            taken = [line["seconds"][name] for line in lines]
            ratios = [before / after for before, after in zip(plain, taken, strict=True)]
            (lowest, kind), *_ = by_kind(kinds, plain, taken)
            print(
                f"  {name:17} {sum(plain) / sum(taken):.2f} x, median of groups {median(ratios):.2f}, "
                f"lowest kind {lowest:.2f} ({kind}), worst group {min(ratios):.2f}, by mean times {by_means[name]:.2f}"
            )


def write_png(path: Path, table: Table) -> None:
    """Draws the default over plain: a bar for each kind and number of requests at once."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = table.cells()
    figure = Figure(figsize=(10, 2.4 * len(cells)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, ((pair, start, (temperature, at_once)), lines) in zip(
        figure.subplots(len(cells), 1, squeeze=False).flat, cells.items(), strict=True
    ):
        kinds, plain = [line["kind"] for line in lines], [line["seconds"]["plain"] for line in lines]
        ratios = by_kind(kinds, plain, [line["seconds"]["default"] for line in lines])
        axes.bar([kind.replace("_", "\n") for _, kind in ratios], [ratio for ratio, _ in ratios])
        axes.axhline(1.0, color="black", linewidth=1)
        axes.set(
            title=f"{pair}, {start} start, {at_once} at once, temperature {temperature}", ylabel="default over plain"
        )
    figure.savefig(path, format="png", dpi=80)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--pair", choices=["embedded", *sorted(PAIRS)], default="embedded")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--kinds", nargs="+", help="of prompts; all by default")
    parser.add_argument("--groups", type=int, default=2, help="of each kind")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--starts", nargs="+", choices=["quiet", "noisy"], default=["quiet", "noisy"])
    arguments = parser.parse_args()
    table, by_category = Table(arguments.out), defaultdict(list)
    for record in read_prompts("--prompts", arguments.prompts):
        by_category[record.category].append(record.text)
    kinds = arguments.kinds or list(by_category)
    if unknown := [kind for kind in kinds if kind not in by_category]:
        parser.error(f"--kinds has {unknown[0]!r}; the prompts have {', '.join(by_category)}")
    target, draft = PAIRS.get(arguments.pair, (MODEL, DRAFT))
    for start in arguments.starts:
        async with contextlib.AsyncExitStack() as stack:
            noise = stack.enter_context(contextlib.ExitStack())
            if start == "noisy":
                noise.enter_context(busy_cores())
            _, client = await stack.enter_async_context(embedded_pair(draft, target={"model": target}))
            for name, speculation in MODES.items():
                await answer(client, ["The first answer of"], SamplingParams(max_tokens=24), speculation, name)
            noise.close()
            for temperature, at_once, group, kind in itertools.product(
                arguments.temperatures, arguments.at_once, range(arguments.groups), kinds
            ):
                key = {
                    "pair": arguments.pair, "start": start, "temperature": temperature, "at_once": at_once, "kind": kind,
                    "group": group,
                }  # fmt: skip
                if table.has(**key):
                    continue
                texts = itertools.cycle(by_category[kind])
                prompts = list(itertools.islice(texts, group * at_once, (group + 1) * at_once))
                sampling = SamplingParams(arguments.tokens, temperature=temperature, seed=group, ignore_eos=True)
                seconds, means = await measure(client, prompts, sampling, f"{temperature}, {at_once}, {group}")
                table.add({**key, "seconds": seconds, "means": means})
                print(
                    f"{start}, {temperature}, {at_once} at once, {kind}: {seconds['plain'] / seconds['default']:.2f} x",
                    flush=True,
                )
    report(table)
    if arguments.png is not None:
        write_png(arguments.png, table)


if __name__ == "__main__":
    asyncio.run(main())
