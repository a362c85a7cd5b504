"""The promise under formats as a campaign: every finished answer is valid, and has the tokens of plain decoding.

python -m tests.formats [--answers 10000] [--schemas 200] [--target M] [--draft M] [--tokens 160]

Schemas are made at random, of the kinds that people write: nested objects, arrays, enums, constants, numbers with bounds,
strings with lengths, patterns and formats, alternatives, definitions that refer to themselves. Each answer's drafter,
temperature and white space are drawn too; 1, 8 and 32 run at once. Exits with 1 if an answer is invalid or differs.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

from paceline.client import AsyncClient
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Rule, SpeculationParams
from tests.identity import VARIANTS
from tests.services import start_trio

WORDS = (
    "name",
    "age",
    "city",
    "tags",
    "price",
    "items",
    "id",
    "email",
    "notes",
    "status",
    "date",
    "total",
    "owner",
    "size",
)
OFF = SpeculationParams(enabled=False)
AT_ONCE = (1, 8, 32)
Schema = dict[str, Any]


def make_schema(coin: random.Random, depth: int = 0) -> Schema:
    """Returns an object's schema; deeper ones are smaller."""
    names = coin.sample(WORDS, coin.randint(1, 4 if depth == 0 else 2))
    properties = {name: make_value(coin, depth + 1) for name in names}
    required = [name for name in names if coin.random() < 0.8]
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    if coin.random() < 0.8:
        schema["additionalProperties"] = False
    if depth == 0 and coin.random() < 0.2:
        schema["$defs"] = {"node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": False}}  # fmt: skip
        properties["chain"] = {"$ref": "#/$defs/node"}
    return schema


def make_value(coin: random.Random, depth: int) -> Schema:
    kinds: list[Callable[[random.Random, int], Schema]] = [_text, _text, _number, _choice, _plain]
    if depth < 3:
        kinds += [_list, make_schema, _either]
    return coin.choice(kinds)(coin, depth)


def _text(coin: random.Random, depth: int) -> Schema:
    more: list[Schema] = [
        {"maxLength": coin.randint(3, 20)}, {"minLength": 2, "maxLength": 12}, {"pattern": "^[A-Z][a-z]{1,6}$"},
        {"pattern": "^[0-9]{3}-[0-9]{4}$"}, {"format": "date"}, {"format": "uuid"}, {"format": "ipv4"}, {"format": "time"},
    ]  # fmt: skip
    return {"type": "string"} | coin.choice(more)


def _number(coin: random.Random, depth: int) -> Schema:
    low = coin.randint(-50, 50)
    kinds: list[Schema] = [
        {"type": "integer", "minimum": low, "maximum": low + coin.randint(0, 500)},
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 20},
        {"type": "number", "minimum": 0, "maximum": 1},
    ]
    return coin.choice(kinds)


def _choice(coin: random.Random, depth: int) -> Schema:
    kinds: list[Schema] = [
        {"enum": coin.sample(["red", "green", 'a "quoted" one', 3, None, True, "naïve"], 3)},
        {"const": coin.choice(["fixed", 7, None])},
    ]
    return coin.choice(kinds)


def _plain(coin: random.Random, depth: int) -> Schema:
    return {"type": coin.choice(["boolean", "null"])}


def _list(coin: random.Random, depth: int) -> Schema:
    low = coin.randint(0, 1)
    return {
        "type": "array",
        "items": make_value(coin, depth + 1),
        "minItems": low,
        "maxItems": low + coin.randint(0, 2),
    }


def _either(coin: random.Random, depth: int) -> Schema:
    return {"anyOf": [make_value(coin, depth + 1), make_value(coin, depth + 1)]}


def make_variants(coin: random.Random) -> SpeculationParams:
    return coin.choice([each for name, each in VARIANTS.items() if name != "off"])


async def run(arguments: argparse.Namespace, address: str) -> Counter[str]:
    coin, found = random.Random(arguments.seed), Counter[str]()
    schemas = [make_schema(coin) for _ in range(arguments.schemas)]
    async with AsyncClient(address) as client:
        for batch in itertools.count():
            if found["answers"] >= arguments.answers:
                return found
            size = min(AT_ONCE[batch % len(AT_ONCE)], arguments.answers - found["answers"])
            await asyncio.gather(
                *(check(client, arguments, coin.choice(schemas), coin.random(), found) for _ in range(size))
            )
            if found["answers"] // 500 != (found["answers"] - size) // 500:
                print(dict(found), flush=True)


async def check(
    client: AsyncClient, arguments: argparse.Namespace, schema: Schema, luck: float, found: Counter[str]
) -> None:
    """Draws everything else from `luck`; every eighth answer is compared with plain decoding."""
    coin = random.Random(luck)
    sampling = SamplingParams(
        max_tokens=arguments.tokens, seed=coin.randrange(2**32), temperature=coin.choice([0.0, 0.8])
    )
    wanted = OutputFormat.of_schema(schema, fixed_whitespace=coin.random() < 0.5)
    speculation = make_variants(coin)
    prompt = [
        {"role": "user", "content": f"Give me data about {coin.choice(WORDS)} number {coin.randrange(1000)} as JSON."}
    ]
    done = await client.complete(prompt, sampling, speculation, format=wanted)
    assert done.finish is not None
    found["answers"] += 1
    found[done.finish.reason] += 1
    if done.finish.reason == "stop" and not _is_valid(done.text, schema):
        found["INVALID"] += 1
        print("INVALID", json.dumps(schema), repr(done.text), speculation, sampling, flush=True)
    exact = speculation.resolved_rule(sampling) is Rule.MATCH or sampling.temperature == 0
    if exact and coin.random() < 1 / 8:
        found["compared"] += 1
        plain = await client.complete(prompt, sampling, OFF, format=wanted)
        if plain.token_ids != done.token_ids:
            found["DIFFERENT"] += 1
            print("DIFFERENT", json.dumps(schema), repr(plain.text), repr(done.text), speculation, sampling, flush=True)


def _is_valid(text: str, schema: Schema) -> bool:
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("answers", 10_000), ("schemas", 200), ("tokens", 160), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("target", "draft"):
        parser.add_argument(f"--{name}", default="")
    arguments = parser.parse_args()
    target, draft = (("--model", each) if each else () for each in (arguments.target, arguments.draft))
    with (
        tempfile.TemporaryDirectory(prefix="paceline-formats-") as folder,
        start_trio(Path(folder), target, draft) as trio,
    ):
        found = asyncio.run(run(arguments, trio.address))
    print(dict(found))
    sys.exit(int(found["INVALID"] + found["DIFFERENT"] > 0))


if __name__ == "__main__":
    main()
