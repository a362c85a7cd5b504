"""`paceline generate`: text from a coordinator."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from paceline.cli import options
from paceline.cli.report import print_stats
from paceline.client import AsyncClient, Completion, Piece, Prompt
from paceline.prompts import PromptRecord, read_prompts
from paceline.sampling import DEFAULT_MAX_TOKENS, SamplingParams, SpeculationParams


def generate(
    prompt: Annotated[str | None, typer.Argument(help="what to answer; default: read from stdin")] = None,
    address: options.Address = options.DEFAULT_ADDRESS,
    prompts: Annotated[Path | None, typer.Option(help=f"a file of prompts instead: {options.PROMPT_FORMS}")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="with --prompts: how many at once")] = 1,
    max_tokens: options.MaxTokens = DEFAULT_MAX_TOKENS,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    min_tokens: options.MinTokens = 0,
    ignore_eos: options.IgnoreEos = False,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logprobs: options.Logprobs = None,
    raw: Annotated[bool, typer.Option("--raw", help="the prompt as it is, without chat template")] = False,
    speculation: options.SpeculationSwitch = None,
    drafter: options.DrafterName = None,
    draft_tokens: options.DraftTokens = None,
    rule: options.RuleName = None,
    coupled: options.Coupled = False,
    lenience: options.Lenience = None,
    stats: Annotated[bool, typer.Option("--stats", help="a table of figures on stderr")] = False,
    color: Annotated[bool, typer.Option("--color", help="colour tokens by origin")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a prompt on stdout")] = False,
) -> None:
    """Streams text: one PROMPT, or a file of them."""
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        seed=seed, stop=tuple(stop or ()), min_tokens=min_tokens, ignore_eos=ignore_eos,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, logprobs=logprobs,
    )  # fmt: skip
    given = options.given_speculation(speculation, drafter, draft_tokens, rule, coupled, lenience)
    if prompts is not None:
        wanted = read_prompts("--prompts", prompts)
    else:
        wanted = [PromptRecord(prompt if prompt is not None else sys.stdin.read())]
    printer = Printer(as_json=as_json, color=color, stats=stats)
    options.run(_run(address, wanted, sampling, given, raw, concurrency, printer))


class Printer:
    """Prints completions in the order of the prompts, the first unfinished one as it streams."""

    def __init__(self, as_json: bool, color: bool, stats: bool) -> None:
        self._as_json = as_json
        self._stats = stats
        self._console = Console(highlight=False, soft_wrap=True, force_terminal=True if color else None)
        self._color = color

    def piece(self, piece: Piece) -> None:
        """Part of the completion whose turn it is."""
        if self._as_json or not piece.text:
            return
        if self._color:
            self._console.print(options.coloured(piece), end="")
        else:
            print(piece.text, end="", flush=True)

    def end(self, index: int, record: PromptRecord, completion: Completion) -> None:
        """The completion whose turn it was is whole."""
        if self._as_json:
            print(json.dumps(as_record(index, record.id, completion)), flush=True)
        else:
            print(flush=True)
        if self._stats:
            print_stats([completion])


def as_record(index: int, own_id: Any, completion: Completion) -> dict[str, Any]:
    """One line of `--json`."""
    finish = completion.finish
    assert finish is not None
    logprobs = {"logprobs": [asdict(each) for each in completion.logprobs]} if completion.logprobs else {}
    return {
        "index": index,
        **({} if own_id is None else {"id": own_id}),
        "text": completion.text,
        "token_ids": completion.token_ids,
        "origins": completion.origins,
        **logprobs,
        "finish_reason": finish.reason,
        "usage": {
            "prompt_tokens": finish.prompt_tokens,
            "cached_prompt_tokens": finish.cached_prompt_tokens,
            "completion_tokens": finish.completion_tokens,
        },
        "speculation": asdict(finish.speculation),
        "timing": asdict(finish.timing),
        "seed": finish.seed,
    }


async def _run(
    address: str, records: list[PromptRecord], sampling: SamplingParams, given: dict[str, Any], raw: bool,
    concurrency: int, printer: Printer,
) -> None:  # fmt: skip
    async with AsyncClient(address) as client:
        speculation = await options.resolve_speculation(client, given)
        places = asyncio.Semaphore(concurrency)
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in records]
        tasks = [
            asyncio.create_task(_generate_into(queue, places, client, record.prompt, sampling, speculation, raw))
            for queue, record in zip(queues, records, strict=True)
        ]
        try:
            for index, record in enumerate(records):
                completion = Completion()
                async for piece in _drain(queues[index]):
                    completion.add(piece)
                    printer.piece(piece)
                await tasks[index]
                printer.end(index, record, completion)
        finally:
            for task in tasks:
                task.cancel()


async def _generate_into(
    queue: asyncio.Queue[Any], places: asyncio.Semaphore, client: AsyncClient, prompt: Prompt,
    sampling: SamplingParams, speculation: SpeculationParams | None, raw: bool,
) -> None:  # fmt: skip
    try:
        async with places:
            async for piece in client.stream(prompt, sampling, speculation, raw):
                queue.put_nowait(piece)
    finally:
        queue.put_nowait(None)


async def _drain(queue: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while (piece := await queue.get()) is not None:
        yield piece
