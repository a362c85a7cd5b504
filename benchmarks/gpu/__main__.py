"""Measures one part on a GPU and adds its figures to a JSON file.

python -m benchmarks.gpu PART [--out gpu_results] [--target dummy:llama-3.2-3b] [--draft dummy:llama-3.2-1b] ...

Random weights in Llama-3.2's shapes, made on the GPU. Where acceptance matters a coin decides it
(--synthetic-acceptance-rate). `services`, `identity` and `sharing` also run with `--device cpu`: a rehearsal, no
measurement. All parts in turn, each with a time limit: benchmarks/gpu/first_run.sh.
"""

import argparse
import importlib
import sys
import traceback

from benchmarks.gpu.first_run import LIMITS_S, NO_GPU
from benchmarks.gpu.options import add_options, make_options
from benchmarks.gpu.results import Results

# Needs no GPU, and runs without one with `--device cpu`. All other parts need one.
WITHOUT_GPU, ON_CPU_TOO = ("compile",), ("services", "identity", "sharing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=LIMITS_S)
    add_options(parser)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    part, results = arguments.part, Results(arguments.out, arguments.part)
    try:
        if part not in WITHOUT_GPU and not (part in ON_CPU_TOO and arguments.device == "cpu") and not has_gpu():
            results.put(error="torch finds no GPU")
            print("torch finds no GPU")
            sys.exit(NO_GPU)
        importlib.import_module(f"benchmarks.gpu.parts.{part}").measure(make_options(arguments), results)
    except Exception:
        traceback.print_exc()
        results.put(error=traceback.format_exc(limit=-4))
        sys.exit(1)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
