import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from paceline.checks import require
from paceline.cli import options
from paceline.cli.command import run
from paceline.cli.printing import Answer, Printer, TracePrinter, write_record
from paceline.client import AsyncClient, Chunk, Prompt, RequestOptions
from paceline.errors import ConfigError, InvalidArgument
from paceline.prompts import PromptRecord, read_prompts
from paceline.rpc.channel import COORDINATOR_ADDRESS
from paceline.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from paceline.speculation_params import SpeculationParams


@dataclass(frozen=True, slots=True)
class GenerateArgs:
    connect: Callable[[], AsyncClient]
    records: list[PromptRecord]
    sampling: SamplingParams
    # The fields of SpeculationParams that were given.
    given: dict[str, Any]
    raw: bool
    concurrency: int
    options: RequestOptions
    # Where --trace-json goes.
    traces: TextIO | None


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="prompt; - or none: read it from stdin", show_default=False)
    ] = None,
    address: options.Address = COORDINATOR_ADDRESS,
    api_key_file: options.ApiKeyFile = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    prompts: Annotated[Path | None, typer.Option(help=f"file of prompts: {options.PROMPT_FORMS}")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="with --prompts: number of concurrent requests", rich_help_panel=options.ADVANCED)
    ] = 1,
    max_tokens: options.MaxTokens = DEFAULT_MAX_TOKENS,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    n: Annotated[int, typer.Option("--n", help="number of samples per prompt, 1 to 64")] = 1,
    stop: options.Stop = None,
    min_tokens: options.MinTokens = 0,
    ignore_eos: options.IgnoreEos = False,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logprobs: options.Logprobs = None,
    beams: options.Beams = 1,
    length_penalty: options.LengthPenalty = 1.0,
    raw: Annotated[
        bool, typer.Option("--raw", help="send the prompt without the chat template", rich_help_panel=options.ADVANCED)
    ] = False,
    json_schema: options.JsonSchema = None,
    compact_json: options.CompactJson = False,
    choice: options.Choice = None,
    regex: options.Regex = None,
    grammar: options.Grammar = None,
    speculation: options.SpeculationSwitch = None,
    drafter: options.DrafterName = None,
    num_speculative_tokens: options.DraftTokens = None,
    draft_min: options.DraftMin = None,
    draft_max: options.DraftMax = None,
    entropy_beta: options.EntropyBeta = None,
    rule: options.RuleName = None,
    lenience: options.Lenience = None,
    draft_temperature: options.DraftTemperature = None,
    draft_model: options.DraftName = "",
    prediction: Annotated[
        Path | None,
        typer.Option(help="file with the expected output, a source of drafts", rich_help_panel=options.ADVANCED),
    ] = None,
    cache_salt: Annotated[str, typer.Option(hidden=True)] = "",
    trace: Annotated[
        bool,
        typer.Option("--trace", help="print one line per round in place of the text", rich_help_panel=options.ADVANCED),
    ] = False,
    trace_json: Annotated[
        Path | None, typer.Option(help="write one JSON object per round to this file", rich_help_panel=options.ADVANCED)
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="print statistics to stderr")] = False,
    color: Annotated[
        bool, typer.Option("--color", help="color tokens by origin, on a terminal or with FORCE_COLOR=1")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per sample")] = False,
) -> None:
    """Streams text: one PROMPT, or a file of them."""
    if logprobs is not None and not as_json:
        raise InvalidArgument("logprobs", "needs --json")
    if trace and as_json:
        raise InvalidArgument("--trace and --json", "are given; use --trace-json FILE with --json")
    options.require_file("--trace-json", trace_json)
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        seed=seed, stop=tuple(stop or ()), min_tokens=min_tokens, ignore_eos=ignore_eos,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, n=n, logprobs=logprobs,
        beams=beams, length_penalty=length_penalty,
    )  # fmt: skip
    length = options.given_length(num_speculative_tokens, draft_min, draft_max, entropy_beta)
    given = options.given_speculation(speculation, drafter, length, rule, lenience, draft_temperature, draft_model)
    format = options.given_format(json_schema, compact_json, choice, regex, grammar)
    if prompt is not None and prompts is not None:
        raise InvalidArgument("PROMPT and --prompts", "are given; give one of them")
    wanted = [PromptRecord(one_prompt(prompt))] if prompts is None else read_prompts("--prompts", prompts)
    more: RequestOptions = {"trace": trace or trace_json is not None, "cache_salt": cache_salt, "format": format}
    if prediction is not None:
        more["prediction"] = options.read_text("--prediction", prediction)
    shape = (stats, len(wanted) * n > 1, format is not None)
    printer = TracePrinter(*shape) if trace else Printer(as_json, color, *shape)
    with contextlib.ExitStack() as stack:
        traces = None if trace_json is None else stack.enter_context(open_to_write("--trace-json", trace_json))
        connect = options.connector(address, api_key_file, options.read_tls(tls_ca, tls_cert, tls_key))
        args = GenerateArgs(connect, wanted, sampling, given, raw, concurrency, more, traces)
        run(_run(args, printer))


def one_prompt(argument: str | None) -> str:
    if argument is not None and argument != "-":
        name, text = "PROMPT", argument
    else:
        if argument is None and sys.stdin.isatty():
            raise InvalidArgument("PROMPT", "is missing; give a PROMPT, --prompts FILE, or a text on stdin")
        name = "the prompt on stdin"
        try:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InvalidArgument(name, "is not UTF-8 text") from None
    require(bool(text.strip()), name, text, "a text that is not empty")
    # Python decodes other bytes on the command line as lone surrogates.
    require(not any("\ud800" <= character <= "\udfff" for character in text), name, text, "a text in UTF-8")
    return text


def open_to_write(name: str, path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror or error}") from error


async def _run(args: GenerateArgs, printer: Printer) -> None:
    async with args.connect() as client:
        speculation = await options.resolve_speculation(client, args.given, args.sampling)
        slots = asyncio.Semaphore(args.concurrency)
        # One queue per prompt and sample.
        queues: list[list[asyncio.Queue[Any]]] = [
            [asyncio.Queue() for _ in range(args.sampling.n)] for _ in args.records
        ]
        tasks = [
            asyncio.create_task(_generate_into(samples, slots, client, record.prompt, args, speculation))
            for samples, record in zip(queues, args.records, strict=True)
        ]
        try:
            for index, record in enumerate(args.records):
                for choice, queue in enumerate(queues[index]):
                    answer = Answer(index, choice, record)
                    printer.begin(answer)
                    async for chunk in _drain(queue):
                        answer.completion.add(chunk)
                        printer.chunk(chunk)
                        if args.traces is not None:
                            write_record(args.traces, answer, chunk)
                    if answer.completion.finish is None:
                        # Raises what ended it early.
                        await tasks[index]
                    printer.end(answer)
        finally:
            for task in tasks:
                task.cancel()


async def _generate_into(
    samples: list[asyncio.Queue[Any]], slots: asyncio.Semaphore, client: AsyncClient, prompt: Prompt, args: GenerateArgs,
    speculation: SpeculationParams | None,
) -> None:  # fmt: skip
    try:
        async with slots:
            async for chunk in client.stream(prompt, args.sampling, speculation, args.raw, **args.options):
                samples[chunk.index].put_nowait(chunk)
    finally:
        for queue in samples:
            queue.put_nowait(None)


async def _drain(queue: asyncio.Queue[Any]) -> AsyncIterator[Chunk]:
    while (chunk := await queue.get()) is not None:
        yield chunk
        if chunk.finish is not None:
            return
