"""Output formats: what they cost and gain, in turns, with the same prompts.

python -m benchmarks.structured [--target M] [--draft M] [--at-once 1] [--count 8] [--tokens 96] [--repeats 3]

`plain` is free text without drafts, of as many tokens as asked for. Each variant's tokens per second are given over those
of `plain` in the same turn, from each answer's first token on, with the worst turn. Answers under the schema end by
themselves and are checked against it.
"""

import argparse
import asyncio
import json
import statistics

import jsonschema

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from paceline.client import AsyncClient
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

PEOPLE = ("a baker", "a sailor", "a teacher", "a nurse", "a farmer", "a pilot", "a judge", "a plumber")
SCHEMA = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "occupation": {"type": "string", "maxLength": 40},
        "age_in_years": {"type": "integer", "minimum": 18, "maximum": 99},
        "favourite_colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 2},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 40}, "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "postal_code"],
            "additionalProperties": False,
        },
    },
    "required": ["full_name", "occupation", "age_in_years", "favourite_colours", "address"],
    "additionalProperties": False,
}  # fmt: skip
OFF, DEFAULT = SpeculationParams(enabled=False), SpeculationParams()
ANY, FREE = OutputFormat(json_object=True), OutputFormat.of_schema(SCHEMA)
FIXED = OutputFormat.of_schema(SCHEMA, fixed_whitespace=True)
VARIANTS = {
    "plain": (None, OFF), "plain again": (None, OFF), "object": (ANY, OFF), "schema": (FREE, OFF), "schema, fixed": (FIXED, OFF),
    "default": (None, DEFAULT), "schema, default": (FREE, DEFAULT), "schema, fixed, default": (FIXED, DEFAULT),
}  # fmt: skip


async def speed(client: AsyncClient, variant: str, arguments: argparse.Namespace, turn: int) -> float:
    """Returns tokens per second; no variant finds what another has answered."""
    wanted, speculation = VARIANTS[variant]
    sampling = SamplingParams(max_tokens=arguments.tokens, ignore_eos=wanted is None)
    tokens, seconds, limit = 0, 0.0, asyncio.Semaphore(arguments.at_once)

    async def ask(person: str) -> None:
        nonlocal tokens, seconds
        prompt = f"Invent {person} and describe them as a JSON object with these keys: full_name, occupation, \
age_in_years, favourite_colours, address (street and postal_code)."
        async with limit:
            salt = f"{turn} {variant}"
            done = await client.complete(prompt, sampling, speculation, format=wanted, cache_salt=salt)
        assert done.finish is not None
        if wanted not in (None, ANY) and done.finish.reason == "stop":
            jsonschema.validate(json.loads(done.text), SCHEMA)
        tokens += done.finish.completion_tokens - 1
        seconds += (done.finish.timing.total_ms - done.finish.timing.ttft_ms) / 1e3

    await asyncio.gather(*(ask(PEOPLE[at % len(PEOPLE)]) for at in range(arguments.count)))
    return arguments.at_once * tokens / seconds


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=MODEL)
    parser.add_argument("--draft", default=DRAFT)
    for name, default in (("at-once", 1), ("count", 8), ("tokens", 96), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in VARIANTS}
    async with embedded_pair(arguments.draft, remembers=False, target={"model": arguments.target}) as (_, client):
        for variant in VARIANTS:
            await speed(client, variant, arguments, -1)
        for turn in range(arguments.repeats):
            speeds = {variant: await speed(client, variant, arguments, turn) for variant in VARIANTS}
            for variant, each in speeds.items():
                ratios[variant].append(each / speeds["plain"])
            print(f"turn {turn}: plain {speeds['plain']:.1f} tokens/s", flush=True)
    for variant, each in ratios.items():
        print(f"{variant:24s} {statistics.mean(each):5.2f} x, worst {min(each):5.2f}")


if __name__ == "__main__":
    asyncio.run(main())
