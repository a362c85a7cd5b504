"""Where a block of the cache has its keys and values, and how much memory it takes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.engine.cpu.paged_attention import CACHE_DTYPES, make_layout
from paceline.engine.engine import build_engine
from paceline.engine.engine_config import TARGET_ROLE, EngineConfig
from paceline.engine.models.dummy import dummy_config
from paceline.engine.models.model_config import ModelConfig

NUM_BLOCKS = 3
TINY = ModelConfig.from_transformers(dummy_config("tiny"))
# Layers, KV heads, head_dim, block_size: scales that fill their parts, and scales that do not.
SHAPES = [(2, 2, 16, 16), (3, 3, 12, 8), (30, 3, 64, 64), (1, 1, 128, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CACHE_DTYPES)
def test_each_byte_belongs_to_one_array_of_one_block(name: str, shape: tuple[int, int, int, int]) -> None:
    num_layers, kv_heads, head_dim, block_size = shape
    layout = make_layout(
        replace(TINY, num_kv_heads=kv_heads, head_dim=head_dim), num_layers, block_size, CACHE_DTYPES[name]
    )
    memory = np.zeros(NUM_BLOCKS * layout.block_bytes, np.uint8)
    num_matrix_bytes, num_scale_bytes = 0, 0
    for layer in layout.split(memory):
        matrices, scales = layer[:2], layer[2:]
        for place in range(0, NUM_BLOCKS * layout.num_parts, layout.num_parts):
            for part in (each[place] for each in matrices):
                part.view(np.uint8)[...] += 1
                num_matrix_bytes += part.nbytes
            for part in (each[place * head_dim // 4] for each in scales):
                part.view(np.uint8)[...] += 1
                num_scale_bytes += part.nbytes
    tokens = NUM_BLOCKS * num_layers * 2 * kv_heads * block_size
    assert num_matrix_bytes == tokens * head_dim * CACHE_DTYPES[name].itemsize
    assert num_scale_bytes == (4 * tokens if name == "int8" else 0)
    assert memory.max() == 1, "two arrays have a byte in common"
    of_blocks = memory.reshape(NUM_BLOCKS, -1).sum(axis=1)
    assert (of_blocks == (num_matrix_bytes + num_scale_bytes) // NUM_BLOCKS).all()
    assert layout.block_bytes - of_blocks[0] < kv_heads * head_dim * block_size, "less than a part is left over"


@pytest.mark.parametrize(
    # The tiny model has 2 layers with 2 KV heads of 16 features: 4 parts of 2 KiB in int8, and one for the scales.
    ("dtype", "cache", "block_bytes"),
    [
        ("float32", "auto", 4 * 8192), ("bfloat16", "auto", 4 * 4096), ("float32", "bfloat16", 4 * 4096),
        ("float32", "int8", 5 * 2048), ("bfloat16", "int8", 5 * 2048),
    ],
)  # fmt: skip
async def test_a_cache_has_as_many_blocks_as_its_memory_holds(dtype: str, cache: str, block_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    config = EngineConfig(
        model="dummy:tiny", dtype=dtype, kv_cache_dtype=cache, kv_cache_memory=1 << 20, threads=torch.get_num_threads()
    )  # type: ignore[arg-type]
    # On a thread of its own: it stays on one core.
    with ThreadPoolExecutor(max_workers=1) as thread:
        engine = await loop.run_in_executor(thread, build_engine, config, TARGET_ROLE, loop)
    assert engine.pool.num_blocks == (1 << 20) // block_bytes
    attention = engine.worker._runner._attention
    assert attention.cache[0].keys.dtype == CACHE_DTYPES[config.kv_dtype]
    assert attention._blocks.shape == (engine.pool.num_blocks, block_bytes)
