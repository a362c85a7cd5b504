"""`paceline generate`: text from a coordinator."""

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
from paceline.cli.printing import Answer, Printer, TracePrinter, write_record
from paceline.client import AsyncClient, Piece, Prompt, RequestOptions
from paceline.errors import ConfigError, InvalidArgument
from paceline.prompts import PromptRecord, read_prompts
from paceline.sampling import DEFAULT_MAX_TOKENS, SamplingParams
from paceline.speculation import SpeculationParams


@dataclass(frozen=True, slots=True)
class Job:
    """What one call of the command asks for."""

    connect: Callable[[], AsyncClient]
    records: list[PromptRecord]
    sampling: SamplingParams
    # Of the speculation parameters those that were given.
    given: dict[str, Any]
    raw: bool
    concurrency: int
    options: RequestOptions
    # Where --trace-json goes.
    traces: TextIO | None


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="what to answer; - or nothing: a text on stdin", show_default=False)
    ] = None,
    address: options.Address = options.DEFAULT_ADDRESS,
    api_key_file: options.ApiKeyFile = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
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
    beams: options.Beams = 1,
    length_penalty: options.LengthPenalty = 1.0,
    raw: Annotated[bool, typer.Option("--raw", help="the prompt as it is, without chat template")] = False,
    speculation: options.SpeculationSwitch = None,
    drafter: options.DrafterName = None,
    draft_tokens: options.DraftTokens = None,
    draft_min: options.DraftMin = None,
    draft_max: options.DraftMax = None,
    entropy_beta: options.EntropyBeta = None,
    rule: options.RuleName = None,
    coupled: options.Coupled = False,
    lenience: options.Lenience = None,
    draft_temperature: options.DraftTemperature = None,
    prediction: Annotated[
        Path | None, typer.Option(help="a file with what the output will largely be; drafts are taken from it")
    ] = None,
    cache_salt: Annotated[
        str, typer.Option(help="requests with the same one share cached prompts and recent answers; default: none")
    ] = "",
    trace: Annotated[
        bool, typer.Option("--trace", help="a line for each run of the target in place of the text")
    ] = False,
    trace_json: Annotated[Path | None, typer.Option(help="write a JSON object for each run of the target here")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="a table of figures on stderr")] = False,
    color: Annotated[
        bool, typer.Option("--color", help="colour tokens by origin, on a terminal; FORCE_COLOR=1: also elsewhere")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a sample on stdout")] = False,
) -> None:
    """Streams text: one PROMPT, or a file of them."""
    if logprobs is not None and not as_json:
        raise InvalidArgument("--logprobs", "needs --json: as text a completion has no place for them")
    if trace and as_json:
        raise InvalidArgument("--trace and --json", "are given; --trace-json FILE goes with --json")
    options.require_file("--trace-json", trace_json)
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        seed=seed, stop=tuple(stop or ()), min_tokens=min_tokens, ignore_eos=ignore_eos,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, n=n, logprobs=logprobs,
        beams=beams, length_penalty=length_penalty,
    )  # fmt: skip
    length = options.given_length(draft_tokens, draft_min, draft_max, entropy_beta)
    given = options.given_speculation(speculation, drafter, length, rule, coupled, lenience, draft_temperature)
    if prompt is not None and prompts is not None:
        raise InvalidArgument("PROMPT and --prompts", "are given; give one of them")
    wanted = [PromptRecord(one_prompt(prompt))] if prompts is None else read_prompts("--prompts", prompts)
    more: RequestOptions = {"trace": trace or trace_json is not None, "cache_salt": cache_salt}
    if prediction is not None:
        more["prediction"] = read_text("--prediction", prediction)
    has_many = len(wanted) * n > 1
    printer = TracePrinter(stats, has_many) if trace else Printer(as_json, color, stats, has_many)
    with contextlib.ExitStack() as stack:
        traces = None if trace_json is None else stack.enter_context(open_to_write("--trace-json", trace_json))
        connect = options.connector(address, api_key_file, options.read_tls(tls_ca, tls_cert, tls_key))
        job = Job(connect, wanted, sampling, given, raw, concurrency, more, traces)
        options.run(_run(job, printer))


def one_prompt(argument: str | None) -> str:
    """The prompt on the command line, or on stdin. Raises InvalidArgument where there is none."""
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
    # Python reads bytes of the command line that are no UTF-8 as lone surrogates.
    require(not any("\ud800" <= character <= "\udfff" for character in text), name, text, "a text in UTF-8")
    return text


def read_text(name: str, path: Path) -> str:
    """A file's text. Raises InvalidArgument naming the option and the file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidArgument(name, f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(name, f"{path}: not UTF-8 text") from None


def open_to_write(name: str, path: Path) -> TextIO:
    """Raises ConfigError naming the option and the file."""
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror or error}") from error


async def _run(job: Job, printer: Printer) -> None:
    async with job.connect() as client:
        speculation = await options.resolve_speculation(client, job.given, job.sampling)
        places = asyncio.Semaphore(job.concurrency)
        # For each prompt a queue a sample.
        queues: list[list[asyncio.Queue[Any]]] = [[asyncio.Queue() for _ in range(job.sampling.n)] for _ in job.records]
        tasks = [
            asyncio.create_task(_generate_into(samples, places, client, record.prompt, job, speculation))
            for samples, record in zip(queues, job.records, strict=True)
        ]
        try:
            for index, record in enumerate(job.records):
                for choice, queue in enumerate(queues[index]):
                    answer = Answer(index, choice, record)
                    printer.begin(answer)
                    async for piece in _drain(queue):
                        answer.completion.add(piece)
                        printer.piece(piece)
                        if job.traces is not None:
                            write_record(job.traces, answer, piece)
                    if answer.completion.finish is None:
                        # Raises what ended it early.
                        await tasks[index]
                    printer.end(answer)
        finally:
            for task in tasks:
                task.cancel()


async def _generate_into(
    samples: list[asyncio.Queue[Any]], places: asyncio.Semaphore, client: AsyncClient, prompt: Prompt, job: Job,
    speculation: SpeculationParams | None,
) -> None:  # fmt: skip
    try:
        async with places:
            async for piece in client.stream(prompt, job.sampling, speculation, job.raw, **job.options):
                samples[piece.index].put_nowait(piece)
    finally:
        for queue in samples:
            queue.put_nowait(None)


async def _drain(queue: asyncio.Queue[Any]) -> AsyncIterator[Piece]:
    while (piece := await queue.get()) is not None:
        yield piece
        if piece.finish is not None:
            return
