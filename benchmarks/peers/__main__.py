"""Paceline against its peers, in one table.

python -m benchmarks.peers [--model smollm2-135m | qwen2.5-coder-1.5b | dummy:llama-3.2-1b | dummy:llama-3.2-3b]
                           [--weights bf16 | q8_0 | q4_k_m | q4_1] [--prompts FILE.jsonl] [--count 10] [--tokens 80]
                           [--at-once 1,10] [--engines paceline,llama.cpp,...] [--temperature 0] [--json]
python -m benchmarks.peers --phases [--prompt-tokens 512] [--count 3] ...

All engines get the same token ids and weights (from a GGUF file unless bfloat16 or random), and generate exactly
`tokens` tokens per prompt, greedy or at a temperature. With --phases nothing is drafted, prompts are random, and
prefill and decoding are timed separately: `count` requests with `prompt-tokens` tokens in total.

The engines are loaded together and take turns, each stopped while another runs. `make peers` installs llama.cpp, vLLM
and OpenVINO into separate environments; without them the others run.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.memory_bandwidth import Bandwidth, measure_bandwidth
from benchmarks.peers.contest import Contest, Row
from benchmarks.peers.engines import FOLDER, OPENVINO, WorkerPlan, plan_workers
from benchmarks.peers.footprint import footprint_table
from benchmarks.peers.openvino_folder import openvino_folder
from benchmarks.peers.phases import Phases
from benchmarks.peers.protocol import Settings
from benchmarks.peers.report import Report
from benchmarks.peers.subject import FORMATS, REAL, Subject
from benchmarks.prompts import spread_prompts

OWN_PROMPTS = Path(__file__).parent.parent.parent / "tests" / "data" / "prompts.jsonl"
ENGINES = "paceline,transformers,llama.cpp,llama.cpp-native,vllm,openvino"
# llama.cpp proposes up to 48 tokens beyond what is asked for.
SPARE_TOKENS = 64
LENGTH_STEP_TOKENS = 256
READ_BYTES = 1 << 24
# Maximum repeats of a disturbed turn; 0 if Paceline drafts from recent responses.
REPEATS = 3


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=REAL, help=", ".join(FORMATS))
    parser.add_argument(
        "--weights",
        default="bf16",
        help="; ".join(f"{name}: {', '.join(formats)}" for name, formats in FORMATS.items()),
    )
    parser.add_argument("--phases", action="store_true", help="reading a prompt and decoding, apart")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help='lines of JSON with "turns"')
    parser.add_argument("--prompt-tokens", type=int, default=512, help="in the random prompts of a request together")
    parser.add_argument("--count", type=int, default=10, help="prompts, evenly from the file; with --phases requests")
    parser.add_argument("--tokens", type=int, default=80, help="new tokens for each prompt")
    parser.add_argument("--at-once", default="1", help="prompts in a request, as 1,10")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true", help="JSON to stdout, the table to stderr")
    return parser.parse_args()


def make_plans(arguments: argparse.Namespace, subject: Subject) -> list[WorkerPlan]:
    """Raises ValueError for an unknown engine."""
    plans = plan_workers(arguments.engines.split(","), arguments.threads)
    if only_plain(arguments, subject):
        plans = [plan.only_plain() for plan in plans]
    return [plan for plan in plans if plan.contenders and plan.suits(subject)]


def only_plain(arguments: argparse.Namespace, subject: Subject) -> bool:
    """Does not draft a dummy's text, which makes no sense."""
    return arguments.phases or subject.is_dummy


def make_prompts(arguments: argparse.Namespace, subject: Subject, at_once: int) -> list[list[int]]:
    if arguments.phases:
        return subject.random_prompts(arguments.count * at_once, max(1, arguments.prompt_tokens // at_once))
    if subject.is_dummy:
        return subject.random_prompts(arguments.count, arguments.prompt_tokens)
    tokenizer = subject.tokenizer()
    chats = [[{"role": "user", "content": each.text}] for each in spread_prompts(arguments.prompts, arguments.count)]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


def make_settings(
    arguments: argparse.Namespace, subject: Subject, longest_prompt: int, at_once: int, installed: Sequence[WorkerPlan]
) -> Settings:
    """Returns the workers' settings; makes missing files."""
    longest = longest_prompt + arguments.tokens + SPARE_TOKENS
    model_folder = str(subject.model_folder(say)) if subject.model == REAL else ""
    formats = [plan.weights for plan in installed if plan.engine == "openvino" and not plan.reads_gguf]
    needs_gguf = not subject.has_folder or any(plan.reads_gguf for plan in installed)
    gguf_file = _in_memory(subject.gguf_file()) if needs_gguf else ""
    has_draft = not only_plain(arguments, subject)
    return Settings(
        model_folder=model_folder,
        gguf_file=gguf_file,
        target=model_folder if subject.has_folder else gguf_file,
        draft=subject.draft if has_draft else "none",
        draft_gguf_file=subject.draft_gguf_file,
        openvino_folders={
            weights: str(openvino_folder(Path(model_folder), weights, FOLDER, OPENVINO)) for weights in formats
        },
        threads=arguments.threads,
        max_length=-(-longest // LENGTH_STEP_TOKENS) * LENGTH_STEP_TOKENS,
        max_at_once=at_once,
        temperature=arguments.temperature,
    )


def _in_memory(file: Path) -> str:
    """Returns the file's name. Reads it once before any engine starts, so that the first one does not wait for the
    disk.
    """
    with file.open("rb") as opened:
        while opened.read(READ_BYTES):
            pass
    return str(file)


def make_report(
    arguments: argparse.Namespace, subject: Subject, rows: list[Row], readers: set[str], bandwidth: Bandwidth | None
) -> Report | Phases:
    if bandwidth is not None:
        return Phases(rows, subject.weight_bytes(), readers, bandwidth)
    if subject.is_dummy:
        return Report(rows, None)
    return Report(rows, subject.tokenizer().eos_token_id)


def main() -> None:
    arguments = parse()
    # Stopped workers would outlive a benchmark that is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sizes = [int(size) for size in arguments.at_once.split(",")]
    try:
        subject = Subject(arguments.model, arguments.weights, FOLDER)
        plans = make_plans(arguments, subject)
    except ValueError as error:
        sys.exit(f"error: {error}")
    bandwidth = measure_bandwidth(arguments.threads) if arguments.phases else None
    prompts = {size: make_prompts(arguments, subject, size) for size in sizes}
    longest = max(len(prompt) for size in sizes for prompt in prompts[size])
    settings = make_settings(arguments, subject, longest, max(sizes), [plan for plan in plans if plan.is_installed])
    contest = Contest(say, REPEATS if only_plain(arguments, subject) else 0)
    rows: list[Row] = []
    lengths = [1, 1 + arguments.tokens] if arguments.phases else [arguments.tokens]
    with contest.running(plans, settings):
        for size in sizes:
            rows.extend(contest.run(prompts[size], lengths, size))
        footprints = contest.footprints()
    readers = {contender.name for plan in plans if plan.reads_gguf for contender in plan.contenders}
    report = make_report(arguments, subject, rows, readers, bandwidth)
    title = (
        f"{arguments.model}, {arguments.weights}, temperature {arguments.temperature:g}, {arguments.threads} threads, "
        f"{len(prompts[sizes[0]])} prompts, {arguments.tokens} tokens; " + ", ".join(contest.versions)
    )
    print(
        f"{title}\n\n{report.table()}\n\n{footprint_table(footprints)}",
        file=sys.stderr if arguments.json else sys.stdout,
    )
    if arguments.json:
        figures = {
            "run": title,
            "missing": contest.missing,
            "rows": report.figures(),
            "footprints": [asdict(each) for each in footprints],
        }
        json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
