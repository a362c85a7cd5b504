"""`paceline generate`: text from a coordinator."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.checks import require
from paceline.cli import options
from paceline.cli.printing import Answer, Printer
from paceline.client import AsyncClient, Piece, Prompt
from paceline.errors import InvalidArgument
from paceline.prompts import PromptRecord, read_prompts
from paceline.sampling import DEFAULT_MAX_TOKENS, SamplingParams, SpeculationParams


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="what to answer; - or nothing: a text on stdin", show_default=False)
    ] = None,
    address: options.Address = options.DEFAULT_ADDRESS,
    prompts: Annotated[Path | None, typer.Option(help=f"a file of prompts instead: {options.PROMPT_FORMS}")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="with --prompts: how many at once")] = 1,
    max_tokens: options.MaxTokens = DEFAULT_MAX_TOKENS,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    n: Annotated[int, typer.Option("--n", help="independent samples of each prompt, 1 to 64")] = 1,
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
    color: Annotated[
        bool, typer.Option("--color", help="colour tokens by origin, on a terminal; FORCE_COLOR=1: also elsewhere")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a sample on stdout")] = False,
) -> None:
    """Streams text: one PROMPT, or a file of them."""
    if logprobs is not None and not as_json:
        raise InvalidArgument("--logprobs needs --json: as text a completion has no place for them")
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        seed=seed, stop=tuple(stop or ()), min_tokens=min_tokens, ignore_eos=ignore_eos,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, n=n, logprobs=logprobs,
    )  # fmt: skip
    given = options.given_speculation(speculation, drafter, draft_tokens, rule, coupled, lenience)
    if prompt is not None and prompts is not None:
        raise InvalidArgument("PROMPT and --prompts are given; give one of them")
    wanted = [PromptRecord(one_prompt(prompt))] if prompts is None else read_prompts("--prompts", prompts)
    printer = Printer(as_json, color, stats, with_headers=len(wanted) * n > 1)
    options.run(_run(address, wanted, sampling, given, raw, concurrency, printer))


def one_prompt(argument: str | None) -> str:
    """The prompt on the command line, or on stdin. Raises InvalidArgument where there is none."""
    if argument is not None and argument != "-":
        name, text = "PROMPT", argument
    else:
        if argument is None and sys.stdin.isatty():
            raise InvalidArgument("there is no prompt; give a PROMPT, --prompts FILE, or a text on stdin")
        name = "the prompt on stdin"
        try:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InvalidArgument(f"{name} is not UTF-8 text") from None
    require(bool(text.strip()), name, text, "a text that is not empty")
    # Python reads bytes of the command line that are no UTF-8 as lone surrogates.
    require(not any("\ud800" <= character <= "\udfff" for character in text), name, text, "a text in UTF-8")
    return text


async def _run(
    address: str, records: list[PromptRecord], sampling: SamplingParams, given: dict[str, Any], raw: bool,
    concurrency: int, printer: Printer,
) -> None:  # fmt: skip
    async with AsyncClient(address) as client:
        speculation = await options.resolve_speculation(client, given)
        places = asyncio.Semaphore(concurrency)
        # For each prompt a queue a sample.
        queues: list[list[asyncio.Queue[Any]]] = [[asyncio.Queue() for _ in range(sampling.n)] for _ in records]
        tasks = [
            asyncio.create_task(_generate_into(samples, places, client, record.prompt, sampling, speculation, raw))
            for samples, record in zip(queues, records, strict=True)
        ]
        try:
            for index, record in enumerate(records):
                for choice, queue in enumerate(queues[index]):
                    answer = Answer(index, choice, record)
                    printer.begin(answer)
                    async for piece in _drain(queue):
                        answer.completion.add(piece)
                        printer.piece(piece)
                    if answer.completion.finish is None:
                        # Raises what ended it early.
                        await tasks[index]
                    printer.end(answer)
        finally:
            for task in tasks:
                task.cancel()


async def _generate_into(
    samples: list[asyncio.Queue[Any]], places: asyncio.Semaphore, client: AsyncClient, prompt: Prompt,
    sampling: SamplingParams, speculation: SpeculationParams | None, raw: bool,
) -> None:  # fmt: skip
    try:
        async with places:
            async for piece in client.stream(prompt, sampling, speculation, raw):
                samples[piece.index].put_nowait(piece)
    finally:
        for queue in samples:
            queue.put_nowait(None)


async def _drain(queue: asyncio.Queue[Any]) -> AsyncIterator[Piece]:
    while (piece := await queue.get()) is not None:
        yield piece
        if piece.finish is not None:
            return
