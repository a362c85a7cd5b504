"""A prediction of the output against none, in turns: a file of 200 lines, returned with one line changed.

python -m benchmarks.prediction [--tokens 400] [--rounds 3] [--drafters hybrid,model,ngram] [--draft MODEL]

No model at hand edits files, so the task is turned round: the target continues the file greedily without a prediction,
and what it wrote, with one line changed, is the prediction of the runs that are timed. The output is compared each time.
"""

import argparse
import asyncio
import time
from pathlib import Path

from benchmarks.deployment import DRAFT, embedded_pair
from paceline.client import AsyncClient, Completion
from paceline.sampling import Drafter, SamplingParams, SpeculationParams

FILES = Path(__file__).parents[1] / "tests" / "data"
INSTRUCTION = "Return this file. Change one thing: let the error of a loan that was renewed twice name the book."


async def timed(
    client: AsyncClient, prompt: str, tokens: int, drafter: Drafter, prediction: str | None
) -> tuple[float, Completion]:
    """Tokens per second behind the first token, and the completion."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    first_s, completion = 0.0, Completion()
    async for piece in client.stream(prompt, sampling, SpeculationParams(drafter=drafter), prediction=prediction):
        first_s = first_s or time.perf_counter()
        completion.add(piece)
    return (tokens - 1) / (time.perf_counter() - first_s), completion


def with_one_line_changed(text: str) -> str:
    """The line in the middle says something else."""
    lines = text.split("\n")
    lines[len(lines) // 2] = "            raise LibraryError(f'loan {self.book.number} can not be renewed')"
    return "\n".join(lines)


async def compare(client: AsyncClient, drafter: Drafter, tokens: int, rounds: int) -> None:
    before = (FILES / "editing_before.txt").read_text()
    prompt = f"{INSTRUCTION}\n\n```python\n{before}```\n"
    _, plain = await timed(client, prompt, tokens, drafter, None)
    predictions = {"none": None, "one line changed": with_one_line_changed(plain.text), "the file": before}
    speeds: dict[str, list[float]] = {name: [] for name in predictions}
    for turn in range(rounds + 1):
        for name, prediction in predictions.items():
            speed, done = await timed(client, prompt, tokens, drafter, prediction)
            assert done.token_ids == plain.token_ids, f"prediction {name}: another output"
            assert done.finish is not None
            figures = done.finish.speculation
            if turn == 0:
                # The first turn teaches the rule for the draft length what a draft costs.
                print(
                    f"{drafter.value}, prediction {name}: {figures.mean_acceptance_length:.2f} tokens a round, from the "
                    f"prediction {figures.prediction_accepted} accepted, {figures.prediction_rejected} rejected"
                )
            else:
                speeds[name].append(speed)
    without = sorted(speeds["none"])[rounds // 2]
    for name, values in speeds.items():
        middle = sorted(values)[rounds // 2]
        print(
            f"{drafter.value}, prediction {name}: {middle:.1f} tokens/s, {middle / without:.2f} x without", flush=True
        )
    print(f"{drafter.value}: the output is identical in {rounds + 1} turns")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drafters", default="hybrid,model,ngram")
    parser.add_argument("--draft", default=DRAFT)
    arguments = parser.parse_args()
    async with embedded_pair(arguments.draft) as (_, client):
        for name in arguments.drafters.split(","):
            await compare(client, Drafter(name), arguments.tokens, arguments.rounds)


if __name__ == "__main__":
    asyncio.run(main())
