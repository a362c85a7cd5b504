"""The matrix of faults as a campaign: no output changes, whatever falls when.

python -m tests.faults [--cells PATTERN] [--pair NAME] [--list]

Each cell is one fault (kill -9, stop, SIGTERM, a cut link, garbage, other weights) at one place in one phase, under 1 or 18
generations: half greedy and half seeded, with several drafters and a random draft head, over real processes and tiny models,
or those of `--pair`. A cell passes if the
fault was seen to fall in its phase, every output is that of an undisturbed run without speculation, all blocks are free
afterwards, and the draft model drafts again. It is reported as it ends. Exits with 1 if one failed or never fell in its phase.
The whole takes half an hour on two busy cores.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter

from tests.faults.campaign import Verdict, run_cells
from tests.faults.cells import Cell, cells_like
from tests.faults.deployment import PAIRS


async def run(cells: list[Cell], pair: str) -> int:
    """The exit status."""
    started_s = time.monotonic()
    counts: Counter[Verdict] = Counter()
    async for report in run_cells(cells, pair):
        counts[report.verdict] += 1
        print(report.line, flush=True)
    totals = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict)
    print(f"{len(cells)} cells in {time.monotonic() - started_s:.0f} s: {totals}")
    return int(counts[Verdict.PASSED] < len(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="*", help="e.g. 'kill/*', '*/mid/18'; names as --list prints them")
    parser.add_argument(
        "--pair", default="tiny", choices=PAIRS, help="models; the outputs of others than tiny ones are short"
    )
    parser.add_argument("--list", action="store_true", help="print the cells' names, and run none")
    arguments = parser.parse_args()
    cells = cells_like(arguments.cells)
    if arguments.list:
        print("\n".join(each.name for each in cells))
        return
    if not cells:
        parser.error(f"--cells {arguments.cells!r} matches no cell; --list prints their names")
    sys.exit(asyncio.run(run(cells, arguments.pair)))


if __name__ == "__main__":
    main()
