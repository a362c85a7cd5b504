"""Compiles every kernel to machine code for a Hopper GPU, for which none is needed: the interpreter takes more than the
compiler does. A line for each, on stdout: what it spills of its registers, most of all.

python -m tests.engine.cuda.compile_all     (without TRITON_INTERPRET)
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    sys.path.append(str(Path(__file__).parents[3] / ".triton"))

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from paceline.engine.cuda import paged_attention as attention
from paceline.engine.cuda import products, program, row_kernels
from paceline.engine.cuda.forward_plan import ATTENTION_PART_TOKENS
from paceline.engine.cuda.paged_attention import chunk_tokens
from paceline.engine.cuda.products import FEW, MANY
from paceline.engine.cuda.sampling import partial_softmax, ranking, token_selection

HOPPER = GPUTarget("cuda", 90, 32)
# Of these numbers, and of arrays' addresses, a launch finds that they are multiples of 16, in Llama's shapes: so much
# is read at once.
ALIGNED = ("vocab_size", "width", "out_features", "in_features", "span")
# Llama-3.2's 3B and 1B, SmolLM2, Gemma 2 and 3, a draft head: head_dim, query heads a KV head, window, cap, first position.
SHAPES = (
    (128, 3, 0, 0.0, 0), (64, 4, 0, 0.0, 0), (64, 3, 0, 0.0, 0), (256, 2, 4096, 72.1, 0), (256, 4, 512, 0.0, 0), (128, 4, 0, 0.0, 1),
)  # fmt: skip


def compile_for_hopper(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], num_warps: int = 4, num_stages: int = 3
) -> None:
    """`types` of the arguments that are not constants. Raises what the compiler raises."""
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in ALIGNED
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": num_warps, "num_stages": num_stages})
    print(kernel.__name__, constants, f"{spilled_bytes(compiled.asm['ptx'])} bytes spilled", flush=True)


def spilled_bytes(ptx: str) -> int:
    """Stored for want of registers."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [get_ptxas(HOPPER.arch).path, "-v", "-arch=sm_90a", file.name, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", said)))


def compile_sampling() -> None:
    """Compiles the sampling kernels, for the size of Llama's vocabulary."""
    whole, wide, index, long = "*fp32", "*fp64", "*i32", "*i64"
    known = {
        "logits": whole, "numbers": wide, "supports": index, "peaks": whole, "peak_tokens": index, "totals": wide,
        "outsides": wide, "scores": wide, "choices": index, "ids": index, "kept": wide, "lists": long, "merged": long,
        "samples": wide, "sample_ids": index, "sample_probs": whole, "vocab_size": "i32", "num_parts": "i32",
    }  # fmt: skip
    weighed, ranked = {"PART": partial_softmax.SOFTMAX_PART_TOKENS, "PADDED": 32}, {"PART": ranking.RANKED_PART_TOKENS}
    for kernel, constants in (
        (partial_softmax._survey, {"PART": partial_softmax.SOFTMAX_PART_TOKENS}), (partial_softmax._weigh, weighed),
        (ranking._rank_part, ranked), (ranking._merge, {"PADDED": 16}), (ranking._cut, {"PADDED": 32}),
        (token_selection._select_token, weighed),
    ):  # fmt: skip
        compile_for_hopper(kernel, known, constants, partial_softmax.NUM_WARPS)
    compile_for_hopper(
        program._plan_next_step,
        {
            "samples": wide, "sequence_indices": index, "num_steps": index, "first_positions": index, "wanted": index,
            "tables": index, "tokens": index, "positions": index, "slots": index, "rows": index, "tiles": index,
            "step": "i32", "table_width": "i32", "trash_slot": "i32",
        },
        {"BLOCK_TOKENS": 16},
    )  # fmt: skip


def compile_attention() -> None:
    half, whole, index = "*bf16", "*fp32", "*i32"
    for head_dim, group, window, cap, first in SHAPES:
        for tile_rows, tile_queries in ((8, 32), (16, 64)):
            compile_for_hopper(
                attention._attend_part,
                {
                    "queries": half, "keys": half, "values": half, "tiles": index, "tables": index, "mixed": whole,
                    "peaks": whole, "totals": whole, "factor": "fp32", "table_width": "i32", "num_parts": "i32",
                },
                {
                    "GROUP": group, "KV_HEADS": 8, "HEAD_DIM": head_dim, "BLOCK_TOKENS": 16,
                    "TILE_ROWS": tile_rows, "TILE_QUERIES": tile_queries, "PART": ATTENTION_PART_TOKENS, "CHUNK": chunk_tokens(head_dim),
                    "WINDOW": window, "CAP": cap, "FIRST": first, "AHEAD": first > 0,
                },
                attention.warps_of(tile_rows),
                attention.NUM_STAGES,
            )  # fmt: skip
    for tile_rows, window in ((8, 0), (16, 0), (16, 512)):
        compile_for_hopper(
            attention._add_parts,
            {
                "mixed": whole, "peaks": whole, "totals": whole, "tiles": index, "sinks": whole, "out": half,
                "num_parts": "i32",
            },
            {
                "HEAD_DIM": 128, "NUM_HEADS": 24, "TILE_ROWS": tile_rows, "PART": ATTENTION_PART_TOKENS, "WINDOW": window,
                "HAS_SINKS": window > 0, "AHEAD": window == 0,
            },
        )  # fmt: skip


def compile_rows() -> None:
    """Norm, rotation and gate."""
    half, whole, index = "*bf16", "*fp32", "*i32"
    for flag in (True, False):
        compile_for_hopper(
            row_kernels._norm,
            {
                "x": half, "added": half, "added_weight": whole, "weight": whole, "out": half, "eps": "fp32",
                "scale": "fp32", "width": "i32", "stride": "i32",
            },
            {"HAS_ADDED": flag, "NORMS_ADDED": flag, "HAS_WEIGHT": True, "PADDED": 4096},
        )  # fmt: skip
        compile_for_hopper(
            row_kernels._rotate_and_place,
            {
                "qkv": half, "positions": index, "slots": index, "cos": whole, "sin": whole, "query_norm": whole,
                "key_norm": whole, "query_growth": whole, "queries": half, "keys": half, "values": half, "eps": "fp32",
            },
            {"NUM_HEADS": 24, "KV_HEADS": 8, "HEAD_DIM": 128, "HAS_NORMS": flag, "HAS_GROWTH": flag},
        )  # fmt: skip
    compile_for_hopper(
        row_kernels._gate, {"gate_up": half, "out": half, "width": "i32"}, {"LINEAR": 1.0, "CUBIC": 0.0, "BLOCK": 1024}
    )


def compile_products() -> None:
    half, whole = "*bf16", "*fp32"
    for weight, in_one, tile in (
        (half, True, FEW), (half, False, FEW), ("*i8", True, FEW), ("*i8", False, FEW), ("*i8", True, MANY), ("*i8", False, MANY),
    ):  # fmt: skip
        compile_for_hopper(
            products._multiply,
            {
                "x": half, "weight": weight, "scale": whole, "bias": half, "partials": half if in_one else whole,
                "counts": "*i32", "out": half, "num_rows": "i32", "out_features": "i32", "in_features": "i32", "span": "i32", "num_spans": "i32",
            },
            {
                "HAS_SCALE": weight == "*i8", "HAS_BIAS": True, "IN_ONE": in_one, "ROWS": tile.rows, "FEATURES": tile.features,
                "DEPTH": tile.depth,
            },
            num_stages=tile.num_stages,
        )  # fmt: skip


def main() -> None:
    compile_attention()
    compile_rows()
    compile_products()
    compile_sampling()


if __name__ == "__main__":
    main()
