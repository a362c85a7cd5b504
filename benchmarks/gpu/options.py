"""Options of a part."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    target: str
    draft: str
    device: str
    alphas: list[float]
    sizes: list[int]
    # Tokens per prompt and per answer.
    prompt_tokens: int
    tokens: int
    # Prompts whose answers are compared.
    count: int

    @property
    def max_model_len(self) -> int:
        """Fits a prompt and its answer: graphs are captured for contexts up to this length."""
        return self.prompt_tokens + self.tokens + 64

    @property
    def servers(self) -> dict[str, Any]:
        return {"device": self.device, "max_model_len": self.max_model_len}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("gpu_results"))
    parser.add_argument("--target", default="dummy:llama-3.2-3b")
    parser.add_argument("--draft", default="dummy:llama-3.2-1b")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a rehearsal of the services")
    parser.add_argument(
        "--alphas", type=lambda text: [float(each) for each in text.split(",")], default=[0.8, 0.65, 0.95, 0.5]
    )
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], default=[1, 32, 8, 128])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--count", type=int, default=60)


def make_options(arguments: argparse.Namespace) -> Options:
    return Options(**{name: getattr(arguments, name) for name in Options.__slots__})
