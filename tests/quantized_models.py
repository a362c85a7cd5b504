"""Small GGUF models with random weights in one format."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantized.packing import BY_NAME

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 256, 512, 2, 4, 2, 64
# Large enough for tokens of very different probabilities.
DEVIATION = 0.15
SHAPES = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}  # fmt: skip


def write_model(path: Path, name: str, seed: int, layers: Sequence[str] = ()) -> Path:
    """`name`: of a format, or MIXED for parts of two formats in one product, as Q4_K_M has them.

    `layers`: the layers' formats, BF16 among them; empty: all layers have `name`.
    """
    generator = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama")
    for key, value in (
        ("context_length", 512), ("embedding_length", HIDDEN), ("block_count", len(layers) or LAYERS), ("feed_forward_length", INNER),
        ("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS), ("rope.dimension_count", HEAD_DIM),
    ):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*(chr(ord("A") + i) for i in range(VOCAB - 2)), "AB", "<|end|>"])
    writer.add_token_types([1] * (VOCAB - 1) + [3])
    writer.add_token_merges(["A B"])
    writer.add_eos_token_id(VOCAB - 1)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    one, other = ("Q4_K", "Q6_K") if name == MIXED else (name, name)
    _add(writer, "token_embd.weight", (VOCAB, HIDDEN), other, generator)
    for layer, own in enumerate(layers or [one] * LAYERS):
        for part, shape in SHAPES.items():
            is_other = not layers and (part == "attn_v" or (part == "ffn_down" and layer == 0))
            layout = other if is_other else own
            _add(writer, f"blk.{layer}.{part}.weight", shape, layout, generator)
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


MIXED = "Q4_K and Q6_K"


def _add(writer: GGUFWriter, name: str, shape: tuple[int, int], layout: str, generator: np.random.Generator) -> None:
    kind = GGMLQuantizationType[layout]
    if layout.endswith("K"):
        data = _random_superblocks(layout, shape, generator)
    else:
        data = quantize((generator.standard_normal(shape) * DEVIATION).astype(np.float32), kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def _random_superblocks(layout: str, shape: tuple[int, int], generator: np.random.Generator) -> Array:
    """Any bits are weights. The scale gives them the deviation; the offset of Q4_K and Q5_K centers them."""
    fmt = BY_NAME[layout]
    blocks = generator.integers(0, 256, (shape[0] * shape[1] // fmt.block_features, fmt.block_bytes), np.uint8)
    if layout == "Q6_K":
        # Scales have a deviation of 74, codes of 18.
        scales, start = [DEVIATION / (74 * 18)], 208
    else:
        # Scales and offsets are 32 in the mean; the code in the middle has weight 0.
        middle = 2 ** (fmt.bits - 1)
        scales, start = [DEVIATION / (36 * middle / 2), DEVIATION / (36 * middle / 2) * middle], 0
    halves = np.array(scales, np.float16).view(np.uint8)
    blocks[:, start : start + halves.size] = halves
    return blocks.reshape(shape[0], -1)
