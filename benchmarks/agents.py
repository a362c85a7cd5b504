"""Agents that edit and quote one another's text: suffix lookups across requests against n-grams, in turns.

python -m benchmarks.agents [--drafters ngram,suffix,hybrid] [--tokens 150] [--turns 8]

Five conversations alternate. In each turn an agent gets the current version of one of five documents and returns it
with a change, so one agent after the other rewrites each document. The prompt includes what the agent has seen and
written before. Its answer begins with the document's first lines, so that a small model continues them.

Drafters take turns, each with its own salt, so that it copies only from its own agents' answers. Times start at the
first token. The output is compared each time.
"""

import argparse
import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.deployment import DRAFT, embedded_pair
from paceline.client import AsyncClient, Completion
from paceline.loadtest.workload import OFF
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

DOCUMENTS = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "documents").glob("*.txt"))}
SHOWN_LINES = 5
# The agents' changes, in this order. A text without the word does not change.
CHANGES = (
    ("customer", "client"),
    ("carrier", "delivery company"),
    ("Nordlicht", "Lumen"),
    ("warehouse", "store"),
    ("invoice", "bill"),
    ("stoneware", "porcelain"),
    ("shelves", "racks"),
    ("parcel", "package"),
)


@dataclass(slots=True)
class Agents:
    """Agents whose answers one drafter drafts, and their times."""

    speculation: SpeculationParams
    # What is cached and answered for them is under this.
    salt: str
    histories: list[str] = field(default_factory=lambda: [""] * len(DOCUMENTS))
    answers: list[list[int]] = field(default_factory=list)
    tokens: int = 0
    rounds: int = 0
    # Behind the first token of each answer.
    seconds: float = 0.0

    async def take_turn(self, client: AsyncClient, turn: int, tokens: int) -> None:
        for agent in range(len(self.histories)):
            asked, begins = conversation_turn(agent, turn)
            self.histories[agent] += f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{begins}"
            completion = await self._answer(client, self.histories[agent], tokens)
            self.histories[agent] += f"{completion.text}<|im_end|>\n"

    async def _answer(self, client: AsyncClient, prompt: str, tokens: int) -> Completion:
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        first_s, completion = 0.0, Completion()
        async for chunk in client.stream(prompt, sampling, self.speculation, raw=True, cache_salt=self.salt):
            first_s = first_s or time.perf_counter()
            completion.add(chunk)
        assert completion.finish is not None
        self.seconds += time.perf_counter() - first_s
        self.tokens += len(completion.token_ids) - 1
        self.rounds += completion.finish.speculation.rounds
        self.answers.append(completion.token_ids)
        return completion


def conversation_turn(agent: int, turn: int) -> tuple[str, str]:
    """Returns the message to an agent, and the beginning of its answer."""
    names = list(DOCUMENTS)
    name = names[(agent + turn) % len(names)]
    text = DOCUMENTS[name]
    for old, new in CHANGES[:turn]:
        text = text.replace(old, new)
    old, new = CHANGES[turn % len(CHANGES)]
    asked = f"This is {name}.txt as it stands now:\n\n{text}\nGive it back with {new!r} in place of {old!r}."
    return asked, "".join(text.splitlines(keepends=True)[:SHOWN_LINES])


def tell(agents: dict[str, Agents]) -> None:
    plain, first = list(agents.values())[:2]
    for name, each in agents.items():
        assert each.answers == plain.answers, f"{name}: another output"
        print(
            f"{name}: {each.tokens / each.seconds:.1f} tokens/s, {plain.seconds / each.seconds:.2f} x plain, "
            f"{first.seconds / each.seconds:.2f} x {list(agents)[1]}; "
            f"{each.tokens / max(1, each.rounds):.2f} tokens a run of the target",
            flush=True,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", default="ngram,suffix,hybrid")
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--draft", default=DRAFT)
    arguments = parser.parse_args()
    ways = {OFF: SpeculationParams(enabled=False)}
    ways |= {name: SpeculationParams(drafter=Drafter(name)) for name in arguments.drafters.split(",")}
    order = random.Random(0)
    async with embedded_pair(arguments.draft) as (_, client):
        # Costs are learned once in a coordinator's life.
        for name, speculation in ways.items():
            await Agents(speculation, f"warm-up {name}").take_turn(client, 0, arguments.tokens)
        agents = {name: Agents(speculation, name) for name, speculation in ways.items()}
        for turn in range(arguments.turns):
            for name in order.sample(list(agents), len(agents)):
                await agents[name].take_turn(client, turn, arguments.tokens)
    tell(agents)


if __name__ == "__main__":
    asyncio.run(main())
