"""Paceline beside its peers, one table.

python -m benchmarks.peers [--prompts FILE.jsonl] [--count 10] [--tokens 80] [--at-once 1,10]
                           [--engines paceline,transformers,llama.cpp,vllm,openvino] [--temperature 0] [--json]

The same token ids to all, the same bfloat16 weights, `tokens` tokens for each prompt, greedy or
at a temperature, whatever ends in between. The engines are loaded together and take turns, each stopped while
another runs. `make peers` installs llama.cpp, vLLM and OpenVINO into environments of their own;
without them the others run.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.deployment import DRAFT
from benchmarks.peers.contest import Contest, Row
from benchmarks.peers.engines import FOLDER, OPENVINO, WorkerPlan, plan_workers
from benchmarks.peers.gguf_file import bf16_gguf
from benchmarks.peers.openvino_folder import openvino_folder
from benchmarks.peers.protocol import Settings
from benchmarks.peers.report import Report
from benchmarks.prompts import spread_prompts
from paceline.engine.models.weights import find_folder

MODEL = "smollm2-135m"
OWN_PROMPTS = Path(__file__).parent.parent.parent / "tests" / "data" / "prompts.jsonl"
ENGINES = "paceline,transformers,llama.cpp,vllm,openvino"
# llama.cpp proposes up to 48 tokens beyond what is asked for.
SPARE_TOKENS = 64
LENGTH_STEP_TOKENS = 256


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help='lines of JSON with "turns"')
    parser.add_argument("--count", type=int, default=10, help="prompts, evenly from the file")
    parser.add_argument("--tokens", type=int, default=80, help="new tokens for each prompt")
    parser.add_argument("--at-once", default="1", help="prompts in a request, as 1,10")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--draft", default=DRAFT, help="Paceline's draft, in int8")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true", help="JSON to stdout, the table to stderr")
    return parser.parse_args()


def make_settings(
    arguments: argparse.Namespace, longest_prompt: int, at_once: int, installed: Sequence[WorkerPlan]
) -> Settings:
    """What all workers are told; converts what is not converted yet."""
    longest = longest_prompt + arguments.tokens + SPARE_TOKENS
    model_folder = find_folder(MODEL, torch.bfloat16, say)
    formats = [plan.weights for plan in installed if plan.engine == "openvino"]
    needs_gguf = any(plan.engine == "llama.cpp" for plan in installed)
    return Settings(
        model_folder=str(model_folder),
        draft_folder=str(find_folder(arguments.draft, torch.bfloat16, say)),
        gguf_file=str(bf16_gguf(MODEL, FOLDER)) if needs_gguf else "",
        openvino_folders={
            weights: str(openvino_folder(Path(model_folder), weights, FOLDER, OPENVINO)) for weights in formats
        },
        threads=arguments.threads,
        max_length=-(-longest // LENGTH_STEP_TOKENS) * LENGTH_STEP_TOKENS,
        max_at_once=at_once,
        temperature=arguments.temperature,
    )


def main() -> None:
    arguments = parse()
    # Stopped workers would outlive a benchmark that is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sizes = [int(size) for size in arguments.at_once.split(",")]
    try:
        plans = plan_workers(arguments.engines.split(","), arguments.threads)
    except ValueError as error:
        sys.exit(f"error: {error}")
    tokenizer = AutoTokenizer.from_pretrained(find_folder(MODEL, torch.bfloat16, say))
    prompts = []
    for prompt in spread_prompts(arguments.prompts, arguments.count):
        chat = [{"role": "user", "content": prompt.text}]
        prompts.append(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    installed = [plan for plan in plans if plan.is_installed]
    settings = make_settings(arguments, max(map(len, prompts)), max(sizes), installed)
    contest = Contest(say)
    rows: list[Row] = []
    with contest.running(plans, settings):
        for size in sizes:
            rows.extend(contest.run(prompts, arguments.tokens, size))
    report = Report(rows, tokenizer.eos_token_id)
    title = (
        f"{MODEL}, bfloat16, temperature {arguments.temperature:g}, {arguments.threads} threads, "
        f"{len(prompts)} prompts, {arguments.tokens} tokens; " + ", ".join(contest.versions)
    )
    print(f"{title}\n\n{report.table()}", file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        figures = {"run": title, "missing": contest.missing, "rows": report.figures()}
        json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
