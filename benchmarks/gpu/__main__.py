"""All that can be said of one GPU, in under eight minutes.

python -m benchmarks.gpu [--target dummy:llama-3.2-3b] [--draft dummy:llama-3.2-1b] [--json FILE] [--png FILE]
                         [--only forwards,deterministic,reference,services,memory,identity]

Random weights in Llama-3.2's shapes; where acceptance matters a coin decides it (--synthetic-acceptance). A part that
fails is reported, and the others go on. `--device cpu --only services,identity` tries these parts without a GPU.
"""

import argparse
import asyncio
import json
import time
import traceback
from pathlib import Path
from typing import Any

from paceline.serving.main import prepare_process

prepare_process()

import torch  # noqa: E402

from benchmarks.gpu import services  # noqa: E402

ALPHAS = [0.5, 0.65, 0.8, 0.95]
SIZES = [1, 8, 32, 128]
PARTS = ("forwards", "deterministic", "reference", "services", "memory", "identity")


def run_part(name: str, arguments: argparse.Namespace, figures: dict[str, Any]) -> Any:
    target, draft, device = arguments.target, arguments.draft, arguments.device
    match name:
        case "forwards" | "deterministic":
            from benchmarks.gpu import forwards

            return forwards.measure(target, draft, deterministic=name == "deterministic")
        case "reference":
            from benchmarks.gpu import reference

            return reference.measure(target, draft)
        case "services":
            rows = asyncio.run(
                services.grid(target, draft, device, arguments.alphas, arguments.sizes, arguments.tokens)
            )
            costs = costs_of(figures.get("forwards", {}), rows)
            if costs is not None:
                services.beside_theory(rows, *costs)
            if arguments.png:
                services.plot(rows, costs, arguments.png)
            return rows
        case "memory":
            return asyncio.run(services.memory(target, draft))
        case "identity":
            return {
                name: asyncio.run(services.identity(device, arguments.count, deterministic))
                for name, deterministic in (("deterministic", True), ("as it is", False))
            }
    raise ValueError(f"there is no part {name!r}; there are {', '.join(PARTS)}")


def costs_of(steps: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[float, float] | None:
    """Of a draft step and of a round's wire, in target forwards; None where the forwards were not measured."""
    if "target, one row" not in steps or "draft int8, four drafts" not in steps:
        return None
    forward_ms = steps["target, one row"]["whole_ms"]
    plain = next(row for row in rows if row["k"] == "0")
    wire = max(0.0, 1e3 / plain["tokens_per_s"] / forward_ms - 1)
    return steps["draft int8, four drafts"]["whole_ms"] / 4 / forward_ms, wire


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="dummy:llama-3.2-3b")
    parser.add_argument("--draft", default="dummy:llama-3.2-1b")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--alphas", type=lambda text: [float(each) for each in text.split(",")], default=ALPHAS)
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], default=SIZES)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path, help="of the services: speed by alpha beside theory")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"torch": torch.__version__, "target": arguments.target, "draft": arguments.draft}
    if arguments.device == "cuda":
        figures |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    print(figures, flush=True)
    for name in arguments.only.split(","):
        started_s = time.perf_counter()
        print(f"== {name}", flush=True)
        try:
            figures[name] = run_part(name, arguments, figures)
        except Exception:
            # An hour of a GPU is dear: what failed is said, and the rest measured.
            traceback.print_exc()
            figures[name] = {"failed": traceback.format_exc(limit=3)}
        print(f"== {name}: {time.perf_counter() - started_s:.0f} s", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
