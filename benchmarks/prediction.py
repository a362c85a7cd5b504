"""With a prediction of the output against without, in turns.

python -m benchmarks.prediction [--tokens 300] [--rounds 3] [--drafters hybrid,model] [--draft MODEL]

file    edit a Python file of 200 lines, given in the prompt. The output is the whole file.
answer  a question. The output is an earlier answer.

The available models can't edit files, so the tasks are reversed: the target answers greedily without a prediction, and
its answer with one line changed is the prediction of the timed runs. The first task's prompt ends with the file's first
lines, so that the model continues them. The output is compared each time.
"""

import argparse
import asyncio
import re
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.deployment import DRAFT, embedded_pair
from paceline.client import AsyncClient, Completion, Prompt
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

FILES = Path(__file__).parents[1] / "tests" / "data"
BEFORE, AFTER = ((FILES / f"editing_{name}.txt").read_text() for name in ("before", "after"))
CHANGE = "The same file. One thing has changed: the error of a loan that was renewed twice names the book."
SHOWN_LINES = 30
ANOTHER_LINE = "raise LibraryError(f'loan {self.book.number} can not be renewed')"


@dataclass(frozen=True)
class Task:
    """A prompt, and whether it is raw text."""

    name: str
    prompt: Prompt
    raw: bool
    # Beside what the target itself wrote, with one line changed.
    predictions: dict[str, str]


TASKS = (
    Task(
        "file",
        f"{BEFORE}\n\n# {CHANGE}\n\n" + "".join(BEFORE.splitlines(keepends=True)[:SHOWN_LINES]),
        True,
        {"the file as it was": BEFORE, "the file as it shall be": AFTER},
    ),
    Task("answer", "How do plants make sugar from light? Explain it step by step.", False, {"something else": BEFORE}),
)


async def timed(
    client: AsyncClient, task: Task, tokens: int, speculation: SpeculationParams, prediction: str | None
) -> tuple[float, Completion]:
    """Returns tokens per second after the first token, and the completion."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    first_s, completion = 0.0, Completion()
    async for chunk in client.stream(task.prompt, sampling, speculation, task.raw, prediction=prediction):
        first_s = first_s or time.perf_counter()
        completion.add(chunk)
    return (tokens - 1) / (time.perf_counter() - first_s), completion


def with_one_line_changed(text: str) -> str:
    """Changes the middle line, or a sentence if there are few lines."""
    parts = re.split(r"(?<=\n)|(?<=\. )", text)
    parts[len(parts) // 2] = ANOTHER_LINE + "\n"
    return "".join(parts)


async def compare(client: AsyncClient, task: Task, drafter: Drafter, tokens: int, rounds: int) -> None:
    speculation = SpeculationParams(drafter=drafter)
    _, plain = await timed(client, task, tokens, SpeculationParams(enabled=False), None)
    predictions = {"none": None, "one line changed": with_one_line_changed(plain.text), **task.predictions}
    speeds: dict[str, list[float]] = {name: [] for name in predictions}
    figures = {}
    # The first turn teaches the rule for the draft length what a draft costs.
    for turn in range(rounds + 1):
        for name, prediction in predictions.items():
            speed, done = await timed(client, task, tokens, speculation, prediction)
            assert done.token_ids == plain.token_ids, f"prediction {name}: another output"
            assert done.finish is not None
            figures[name] = done.finish.speculation
            if turn > 0:
                speeds[name].append(speed)
    without = median(speeds["none"])
    for name, values in speeds.items():
        of = figures[name]
        print(
            f"{task.name}, {drafter.value}, prediction: {name}: {median(values):.1f} tokens/s, "
            f"{median(values) / without:.2f} x without ({min(values) / without:.2f} to {max(values) / without:.2f}); "
            f"{of.mean_acceptance_length:.2f} tokens a round; from the prediction {of.prediction_accepted} accepted, "
            f"{of.prediction_rejected} rejected",
            flush=True,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drafters", default="hybrid,model")
    parser.add_argument("--draft", default=DRAFT)
    arguments = parser.parse_args()
    async with embedded_pair(arguments.draft, remembers=False) as (_, client):
        for task in TASKS:
            for name in arguments.drafters.split(","):
                await compare(client, task, Drafter(name), arguments.tokens, arguments.rounds)


if __name__ == "__main__":
    asyncio.run(main())
