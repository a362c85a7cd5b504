"""Conversations on several targets: how much of their prompts is cached, against one target.

python -m benchmarks.affinity [--targets 4] [--conversations 16] [--turns 5]

All conversations run at once, each with a text of its own, and send their turns one after the other. They begin when all
targets are connected: the first to come up would get them all.
"""

import argparse
import asyncio
from urllib.request import urlopen

from benchmarks.deployment import embedded_pair
from benchmarks.gateway import free_port
from benchmarks.services import OWN_PROMPTS
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

NUM_TOKENS = 24
# Of each conversation's first turn.
NUM_CHARACTERS = 1200


async def cached_fraction(num_targets: int, num_conversations: int, num_turns: int) -> float:
    """Returns the cached part of all prompts' tokens but the first turns'."""
    metrics = f"127.0.0.1:{free_port()}"
    options = {"coordinator_settings": {"metrics": metrics}, "max_model_len": 4096, "kv_cache_memory": "256MiB"}
    async with embedded_pair("none", num_targets=num_targets, **options) as (_, client):
        while await asyncio.to_thread(_num_up, metrics) < num_targets:
            await asyncio.sleep(0.1)
        text = OWN_PROMPTS.read_text()

        async def converse(number: int) -> tuple[int, int]:
            begin = number * NUM_CHARACTERS // 2 % max(1, len(text) - NUM_CHARACTERS)
            chat = [{"role": "user", "content": f"{number}: {text[begin : begin + NUM_CHARACTERS]}"}]
            return await _turns(client, chat, num_turns)

        counts = await asyncio.gather(*(converse(number) for number in range(num_conversations)))
    return sum(cached for cached, _ in counts) / sum(total for _, total in counts)


def _num_up(metrics: str) -> int:
    with urlopen(f"http://{metrics}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(line.startswith("paceline_server_up{") and line.endswith(" 1.0") for line in lines)


async def _turns(client: AsyncClient, chat: list[dict[str, str]], num_turns: int) -> tuple[int, int]:
    cached = total = 0
    for turn in range(num_turns):
        sampling, plain = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True), SpeculationParams(enabled=False)
        completion = await client.complete(chat, sampling, plain)
        if turn:
            cached += completion.finish.cached_prompt_tokens
            total += completion.finish.prompt_tokens
        chat = [*chat, {"role": "assistant", "content": completion.text}, {"role": "user", "content": "Go on."}]
    return cached, total


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    one, many = [
        await cached_fraction(count, arguments.conversations, arguments.turns) for count in (1, arguments.targets)
    ]
    print(
        f"cached tokens of later turns: {one:.1%} on one target, {many:.1%} on {arguments.targets} ({many / one:.3f} x)"
    )


if __name__ == "__main__":
    asyncio.run(main())
