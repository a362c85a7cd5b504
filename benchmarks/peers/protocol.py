"""The protocol between benchmark and worker: lines of JSON on the worker's stdin and stdout.

    worker      {"ready": "transformers 5.23.0"}
    benchmark   {"prompts": [[1, 2], [3]], "tokens": 80, "mode": "plain"}     all prompts at once
    worker      {"seconds": 1.9, "token_ids": [[4, 5], [6, 7]]}               prefill included

The worker ends when its stdin does. Standard library only: workers have their own environments.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings, as JSON in its first argument."""

    # A folder with config.json, *.safetensors and the tokenizer; "" if no engine needs one.
    model_folder: str
    # The same weights; others without a `model_folder`.
    gguf_file: str
    # Paceline's target, one of the two; and its draft, which may be no whole model, or "none".
    target: str
    draft: str
    # The draft as a GGUF file, if it is a whole model, else "".
    draft_gguf_file: str
    # By the format of the weights, the model exported for OpenVINO; empty if it does not run.
    openvino_folders: dict[str, str]
    threads: int
    # Most tokens of a sequence, prompt and completion.
    max_length: int
    # Most prompts in a request.
    max_at_once: int
    # Temperature; 0 is greedy.
    temperature: float = 0.0
    # For engines that settle it when they start: what proposes, "ngrams" or "model"; "" for nothing.
    drafter: str = ""
    # For engines with weights in several formats.
    weights: str = "bf16"


class Engine(Protocol):
    # Name and version.
    version: str

    def generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        """Returns `tokens` tokens per prompt, all prompts at once, ignoring end-of-sequence tokens."""

    def close(self) -> None: ...


def serve(start: Callable[[Settings], Engine]) -> None:
    """Runs a worker."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # Whatever libraries print goes to stderr, not between the lines.
    os.dup2(2, 1)

    def say(answer: dict[str, object]) -> None:
        print(json.dumps(answer), file=answers)

    with contextlib.closing(start(Settings(**json.loads(sys.argv[1])))) as engine:
        say({"ready": engine.version})
        for line in sys.stdin:
            request = json.loads(line)
            started_s = time.perf_counter()
            token_ids = engine.generate(request["prompts"], request["tokens"], request["mode"])
            say({"seconds": time.perf_counter() - started_s, "token_ids": token_ids})
