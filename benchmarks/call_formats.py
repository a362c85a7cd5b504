"""What agents meet at a model that writes its calls in one of many forms: the embedded pair, with a template of each form.

python -m benchmarks.call_formats [--only NAME] [--tokens 60] [--steps 10]

Three checks of each form. Identity: required and free calls, greedy and at temperature 0.8, are the same with and without
speculation. Prefix caching: in a conversation of calls and results, of which one call is cut, all tokens but those of the newest
message are cached, up to a block, as far as the model wrote them as the tokenizer writes their text (random weights often do not).
Agents: recorded requests of unmodified clients are answered with calls. It exits with 1 if any fails.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import torch
import uvloop

from benchmarks.deployment import MODEL
from paceline.cli.services import Services
from paceline.cli.stack import make_stack
from paceline.client import AsyncClient, Completion
from paceline.engine.models.weights import find_folder
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.coordinator.tools.call_templates import FAMILIES

RECORDED = Path(__file__).parents[1] / "tests" / "gateway" / "recorded"
COORDINATOR, GATEWAY = "127.0.0.1:50057", "127.0.0.1:50058"
BLOCK_TOKENS = 16
CACHE = {"kv_cache_memory": "384MiB", "block_size": BLOCK_TOKENS}
# As in the recorded requests.
NAMED = {"served_model_name": "tiny"}
CUT_STEP = 3
# That a tool takes.
TOOL_S = 0.1
OFF = SpeculationParams(enabled=False)
SPECULATIONS = {
    "n-grams": SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
    "model": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3),
    "default": SpeculationParams(),
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [
    tool("get_weather", city={"type": "string", "maxLength": 40}, days={"type": "integer", "minimum": 1, "maximum": 9}),
    tool("write_file", path={"type": "string", "maxLength": 40}, lines={"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3}),
    tool("list_files"),
]  # fmt: skip
PROMPTS = (
    "What is the weather in Paris and in Rome this week?",
    "Write a file with a short poem, then list the files.",
)


@dataclass(slots=True)
class Found:
    """Answers that differ, of how many; most tokens that were not cached and could have been, and most that could not; requests that failed."""

    compared: int = 0
    different: int = 0
    # Of how many prompts.
    checked: int = 0
    missed: int = 0
    # Behind the first token that the model wrote in another way than the tokenizer.
    rewritten: int = 0
    asked: int = 0
    failures: str = ""

    @property
    def is_right(self) -> bool:
        return not self.different and not self.failures and self.missed < BLOCK_TOKENS


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="forms with this in their names")
    parser.add_argument("--tokens", type=int, default=60, help="most tokens of an answer")
    parser.add_argument("--steps", type=int, default=10, help="of the conversation")
    given = parser.parse_args()
    is_right = True
    for name, family in FAMILIES.items():
        if given.only not in name:
            continue
        found = Found()
        async with serving(family.template) as client:
            await compare(client, given.tokens, found)
            await converse(client, given.tokens, given.steps, found)
            await replay(given.tokens, found)
        is_right &= found.is_right
        print(
            f"{name:30} {found.different} of {found.compared} differ; at most {found.missed:2d} tokens of {found.checked} prompts not cached"
            f" and {found.rewritten:3d} written in other tokens; "
            f"{found.asked} agents' requests{found.failures}",
            flush=True,
        )
    sys.exit(not is_right)


@contextlib.asynccontextmanager
async def serving(template: str) -> AsyncIterator[AsyncClient]:
    """Serves the embedded pair, the target with another chat template."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name:
        folder = Path(name)
        for file in find_folder(MODEL, torch.bfloat16, lambda _: None).iterdir():
            if file.name != "chat_template.jinja":
                (folder / file.name).symlink_to(file)
        (folder / "chat_template.jinja").write_text(template)
        stack = make_stack({"model": name, **CACHE}, CACHE, {"listen": COORDINATOR}, {"listen": GATEWAY, **NAMED})
        async with Services(stack, lambda _, line: None) as services, AsyncClient(services.address) as client:
            yield client


async def compare(client: AsyncClient, tokens: int, found: Found) -> None:
    for prompt in PROMPTS:
        for choice in ("required", "auto"):
            for temperature in (0.0, 0.8):
                sampling = SamplingParams(max_tokens=tokens, temperature=temperature, seed=7)
                plain, *others = [
                    await client.complete(_user(prompt), sampling, each, tools=TOOLS, tool_choice=choice)
                    for each in (OFF, *SPECULATIONS.values())
                ]
                found.compared += len(others)
                found.different += sum(_substance(each) != _substance(plain) for each in others)


async def converse(client: AsyncClient, tokens: int, steps: int, found: Found) -> None:
    messages: list[dict[str, Any]] = _user(PROMPTS[0])
    # The tokens read and written so far; None before the first calls, and after calls that were cut.
    written: list[int] | None = None
    for step in range(steps):
        sampling = SamplingParams(max_tokens=8 if step == CUT_STEP else tokens, temperature=0)
        # Some models go on calling until they are cut.
        is_parallel = step % 3 == 1
        answer = await client.complete(
            messages, sampling, tools=TOOLS, tool_choice="required", parallel_tool_calls=is_parallel
        )
        assert answer.finish is not None
        prompt = await client.tokenize(messages, tools=TOOLS)
        if written is not None:
            num_alike = next(
                (at for at, pair in enumerate(zip(prompt, written, strict=False)) if len({*pair}) > 1), len(written)
            )
            found.checked += 1
            found.missed = max(found.missed, num_alike - answer.finish.cached_prompt_tokens)
            found.rewritten = max(found.rewritten, len(written) - num_alike)
        await asyncio.sleep(TOOL_S)
        written = [*prompt, *answer.token_ids] if answer.finish.reason == "tool_calls" else None
        calls = [{"id": each.id, "name": each.name, "arguments": each.arguments} for each in answer.tool_calls]
        messages = [
            *messages,
            {"role": "assistant", "content": answer.text, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": each["id"], "content": "18 degrees, sunny"} for each in calls),
        ]


async def replay(tokens: int, found: Found) -> None:
    async with httpx2.AsyncClient(base_url=f"http://{GATEWAY}", timeout=120) as http:
        for client, path, body in recorded(tokens):
            response = await http.post(path, json=body)
            found.asked += 1
            if response.status_code != 200:
                found.failures += f"; {client}: {response.status_code} {response.text[:200]}"
            elif body.get("tools") and not called(response.json()):
                found.failures += f"; {client}: no call in {response.text[:200]}"


def recorded(tokens: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields client, path and body of every recorded request, which must be answered with a call if it offers tools."""
    for file in sorted(RECORDED.glob("*.json")):
        for requests in json.loads(file.read_text()).values():
            for each in requests:
                path, body = each["path"], {**each["body"], "stream": False}
                body.pop("stream_options", None)
                is_messages = path.endswith("/messages")
                body["max_output_tokens" if path.endswith("/responses") else "max_tokens"] = tokens
                if body.get("tools"):
                    body["tool_choice"] = {"type": "any"} if is_messages else "required"
                yield file.stem, path, body


def called(answer: dict[str, Any]) -> bool:
    """Returns whether a chat, a response or a message has a call."""
    parts = answer.get("output") or answer.get("content") or []
    choices = answer.get("choices") or [{"message": {}}]
    return bool(choices[0]["message"].get("tool_calls")) or any(
        each["type"] in ("function_call", "custom_tool_call", "tool_use") for each in parts
    )


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _substance(answer: Completion) -> tuple[Any, ...]:
    calls = [(each.name, each.arguments) for each in answer.tool_calls]
    return answer.token_ids, answer.text, calls


if __name__ == "__main__":
    uvloop.run(main())
