"""Output formats and required calls: what they cost and gain, in turns, with the same prompts.

python -m benchmarks.structured [--target M] [--draft M] [--at-once 1] [--count 8] [--tokens 96] [--repeats 3]

`plain` is free text without drafts, of as many tokens as asked for. Each variant's tokens per second are given over those
of `plain` in the same turn, from each answer's first token on, with the worst turn; then the same of the tokens that a
forward pass decided, for those that a format forces take none. Answers under the schema end by themselves and are checked
against it.
"""

import argparse
import asyncio
import json
import statistics
from typing import Any

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
DESCRIBE = {
    "type": "function",
    "function": {"name": "describe_person", "description": "Describes them.", "parameters": SCHEMA},
}
# A call's arguments go on for as long as an answer of free text.
TEXT = {"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}}}  # fmt: skip
CALL, LONG_CALL = ({"tools": [tool], "tool_choice": "required"} for tool in (DESCRIBE, TEXT))
VARIANTS: dict[str, tuple[OutputFormat | None, SpeculationParams, dict[str, Any]]] = {
    "plain": (None, OFF, {}), "plain again": (None, OFF, {}), "object": (ANY, OFF, {}), "schema": (FREE, OFF, {}),
    "schema, fixed": (FIXED, OFF, {}), "call": (None, OFF, CALL), "long call": (None, OFF, LONG_CALL), "default": (None, DEFAULT, {}),
    "schema, default": (FREE, DEFAULT, {}), "schema, fixed, default": (FIXED, DEFAULT, {}), "call, default": (None, DEFAULT, CALL),
}  # fmt: skip


async def speed(client: AsyncClient, variant: str, arguments: argparse.Namespace, turn: int) -> tuple[float, float]:
    """Returns tokens per second, and those that a forward pass decided; no variant finds what another has answered."""
    wanted, speculation, tools = VARIANTS[variant]
    sampling = SamplingParams(max_tokens=arguments.tokens, ignore_eos=wanted is None and not tools)
    tokens, forced, seconds, limit = 0, 0, 0.0, asyncio.Semaphore(arguments.at_once)

    async def ask(person: str) -> None:
        nonlocal tokens, forced, seconds
        prompt = f"Invent {person} and describe them as a JSON object with these keys: full_name, occupation, \
age_in_years, favourite_colours, address (street and postal_code)."
        async with limit:
            salt = f"{turn} {variant}"
            done = await client.complete(prompt, sampling, speculation, format=wanted, cache_salt=salt, **tools)
        assert done.finish is not None
        if wanted not in (None, ANY) and done.finish.reason == "stop":
            jsonschema.validate(json.loads(done.text), SCHEMA)
        tokens += done.finish.completion_tokens - 1
        forced += done.finish.speculation.forced
        seconds += (done.finish.timing.total_ms - done.finish.timing.ttft_ms) / 1e3

    await asyncio.gather(*(ask(PEOPLE[at % len(PEOPLE)]) for at in range(arguments.count)))
    return arguments.at_once * tokens / seconds, arguments.at_once * (tokens - forced) / seconds


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=MODEL)
    parser.add_argument("--draft", default=DRAFT)
    for name, default in (("at-once", 1), ("count", 8), ("tokens", 96), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    ratios: dict[str, list[tuple[float, ...]]] = {name: [] for name in VARIANTS}
    async with embedded_pair(arguments.draft, remembers=False, target={"model": arguments.target}) as (_, client):
        for variant in VARIANTS:
            await speed(client, variant, arguments, -1)
        for turn in range(arguments.repeats):
            speeds = {variant: await speed(client, variant, arguments, turn) for variant in VARIANTS}
            for variant, each in speeds.items():
                ratios[variant].append(tuple(speed / speeds["plain"][0] for speed in each))
            print(f"turn {turn}: plain {speeds['plain'][0]:.1f} tokens/s", flush=True)
    for variant, pairs in ratios.items():
        all_tokens, decided = zip(*pairs, strict=True)
        print(
            f"{variant:24s} {statistics.mean(all_tokens):5.2f} x, worst {min(all_tokens):5.2f}; "
            f"decided by a forward pass {statistics.mean(decided):5.3f} x"
        )


if __name__ == "__main__":
    asyncio.run(main())
