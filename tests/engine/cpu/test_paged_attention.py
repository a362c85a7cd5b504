"""Attention over the paged cache, of each dtype, against the library's."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.cpu.kernels.attention import AttentionPlan, HeadRotation, Scoring, attend_by, part_address
from paceline.engine.cpu.kernels.cache import Cache, Int8Cache
from paceline.engine.cpu.kernels.scalars import bits_of, tensor_of
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.paged_attention import CACHE_DTYPES, CpuPagedAttention
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.quantization import DTYPES
from tests.engine.feeding import Feeder, Rows, load_llama

NUM_ROWS = 150
# The prompt, one row, a round's rows, and a chunk.
SIZES = (100, 1, 5, 44)
# dtypes of the model, and of the cache.
KINDS = [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]

PLAIN = Scoring(0, 0.0)

pytestmark = pytest.mark.usefixtures("two_workers")


class Reference:
    """Queries, keys and values of one sequence, rotated as Llama's paper rotates: [num_rows, heads, head_dim] float32."""

    def __init__(self, config: ModelConfig, rotation: HeadRotation, qkv: torch.Tensor) -> None:
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        split = qkv.float().view(qkv.shape[0], -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
        cos, sin = torch.from_numpy(rotation.cos), torch.from_numpy(rotation.sin)

        def rotate(x: torch.Tensor) -> torch.Tensor:  # [num_rows, heads, head_dim]
            count = x.shape[0]
            return x * cos[:count, None] + x.roll(head_dim // 2, dims=-1) * sin[:count, None]

        self.queries, self.keys, self.values = rotate(split[0]), rotate(split[1]), split[2]

    def attend(self, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring = PLAIN) -> torch.Tensor:
        """Attention by the library, all rows at once, with these keys and values: [num_rows, heads * head_dim]."""
        num_rows, group = keys.shape[0], self.queries.shape[1] // keys.shape[1]
        keys, values = (side.double().repeat_interleave(group, dim=1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", self.queries.double(), keys) * keys.shape[2] ** -0.5
        if scoring.cap:
            scores = scoring.cap * torch.tanh(scores / scoring.cap)
        distance = torch.arange(num_rows)[:, None] - torch.arange(num_rows)
        is_seen = (distance >= 0) & (distance < (scoring.window or num_rows))
        weights = functional.softmax(scores.masked_fill(~is_seen, -torch.inf), dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(num_rows, -1).float()


def random_qkv(config: ModelConfig, dtype: torch.dtype, num_rows: int = NUM_ROWS) -> torch.Tensor:
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(1)).to(dtype)


def attend(
    qkv: Array, plan: AttentionPlan, rotation: HeadRotation, scoring: Scoring, eps: float, cache: Cache
) -> Array:
    return attend_by(part_address(qkv.dtype, cache), qkv, plan, rotation, scoring, eps, cache)


def scattered(num_rows: int, block_size: int) -> list[int]:
    """Every second block, from the last on."""
    num_blocks = -(-num_rows // block_size)
    return list(range(2 * num_blocks))[::-2]


def attend_in_parts(
    model: CpuLlama, qkv: torch.Tensor, attention: CpuPagedAttention, blocks: list[int], scoring: Scoring = PLAIN
) -> torch.Tensor:
    """The first layer's attention, SIZES rows at a time."""
    parts, done, layer = [], 0, model.layers[0]
    for size in SIZES:
        plan = attention.plan([TokenSpan(0, size, done, blocks)])
        rows = bits_of(qkv[done : done + size])
        parts.append(tensor_of(attend(rows, plan, layer.rotation, scoring, model.config.norm_eps, attention.cache[0])))
        done += size
    return torch.cat(parts)


@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize(("dtype", "cache"), KINDS)
# Windows that end within blocks, at their ends, and of one token.
@pytest.mark.parametrize("scoring", [PLAIN, Scoring(37, 0.0), Scoring(64, 0.0), Scoring(1, 0.0), Scoring(21, 0.7)])
def test_attention_over_a_scattered_cache_is_the_librarys(
    dtype: str, cache: str, block_size: int, scoring: Scoring
) -> None:
    model = load_llama("dummy:tiny", cache=cache)
    qkv, blocks = random_qkv(model.config, DTYPES[dtype]), scattered(NUM_ROWS, block_size)
    attention = model.make_cache(len(blocks) * 2, block_size, num_layers=1)
    ours = attend_in_parts(model, qkv, attention, blocks, scoring)
    reference = Reference(model.config, model.layers[0].rotation, qkv)
    kept = (side.to(DTYPES[cache]).float() for side in (reference.keys, reference.values))
    # A key that lies between two bfloat16 numbers may become the other one.
    rtol, atol = {"float32": (2e-6, 1e-6), "bfloat16": (2**-8, 2**-11)}[cache]
    torch.testing.assert_close(ours.float(), reference.attend(*kept, scoring), rtol=rtol, atol=atol)


def kept_in_int8(attention: CpuPagedAttention, blocks: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values as whole numbers: [NUM_ROWS, kv_heads, head_dim], each with its scales: [NUM_ROWS, kv_heads, 1]."""
    (cache,) = attention.cache
    assert isinstance(cache, Int8Cache)
    head_dim, block_size = cache.keys.shape[2:]
    slots = attention.plan([TokenSpan(0, NUM_ROWS, 0, blocks)]).slots
    places, offsets = slots // block_size, slots % block_size
    scale_places = places * head_dim // 4
    pairs = (
        (cache.keys[places, :, :, offsets], cache.key_scales[scale_places, :, offsets]),
        (cache.values[places, :, offsets], cache.value_scales[scale_places, :, offsets]),
    )
    return [(torch.from_numpy(whole).float(), torch.from_numpy(scales)[..., None]) for whole, scales in pairs]


@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_int8_cache_is_within_half_a_step_and_attention_over_it_is_the_librarys(dtype: str, block_size: int) -> None:
    """The two together say how far it is from attention over exact keys and values."""
    model = load_llama("dummy:tiny", cache="int8")
    qkv, blocks = random_qkv(model.config, DTYPES[dtype]), scattered(NUM_ROWS, block_size)
    # A token whose keys and values are all 0 has a scale, too.
    qkv[7] = 0
    attention = model.make_cache(len(blocks) * 2, block_size, num_layers=1)
    ours = attend_in_parts(model, qkv, attention, blocks)
    reference = Reference(model.config, model.layers[0].rotation, qkv)
    kept = kept_in_int8(attention, blocks)
    for exact, (whole, scales) in zip((reference.keys, reference.values), kept, strict=True):
        # The kernel's rotation may differ in its last place.
        assert ((whole * scales - exact).abs() <= 0.501 * scales).all()
        # All of the range is used, so a step is as small as can be.
        largest = whole.abs().amax(dim=-1)
        assert (largest[7] == 0).all()
        assert (largest[torch.arange(NUM_ROWS) != 7] == 127).all()
    expected = reference.attend(*(whole * scales for whole, scales in kept))
    # Sums of float32, where the library multiplies by the scales before it adds, and we do behind it.
    rtol, atol = {"float32": (2e-6, 1e-6), "bfloat16": (2**-8, 1e-6)}[dtype]
    torch.testing.assert_close(ours.float(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("cache", CACHE_DTYPES)
def test_the_kernel_reads_no_key_behind_a_row(cache: str) -> None:
    """What lies behind a row in its block, or in another sequence's block, may be anything but NaN."""
    model = load_llama("dummy:tiny", cache=cache)
    qkv = bits_of(random_qkv(model.config, torch.float32, 20))

    def run(attention: CpuPagedAttention) -> np.ndarray:
        plan = attention.plan([TokenSpan(0, 20, 0, [1, 3])])
        layer = model.layers[0]
        return attend(qkv, plan, layer.rotation, layer.scoring, model.config.norm_eps, attention.cache[0])

    clean, dirty = (model.make_cache(4, 16, num_layers=1) for _ in range(2))
    # Of each dtype, also of the scales, a large number; of bfloat16 it is 2^60.
    large = {np.dtype(np.float32): 1e30, np.dtype(np.uint16): 0x5D80, np.dtype(np.int8): 127}
    for array in dirty.cache[0]:
        array[:] = large[array.dtype]
    assert np.array_equal(run(clean), run(dirty))


@pytest.mark.parametrize("cache", CACHE_DTYPES)
def test_a_copied_block_holds_all_that_attention_reads(cache: str) -> None:
    model = load_llama("dummy:tiny", cache=cache)
    tokens = list(range(3, 53))
    expected = Feeder(model, 8, 16).feed_split(tokens, [40, 10])[40:]
    feeder = Feeder(model, 8, 16)
    feeder.feed(Rows(tokens[:40], 0, [0, 1, 2]))
    feeder.copy_blocks([0, 1, 2], [5, 7, 4])
    # Another sequence takes the old ones.
    feeder.feed(Rows(tokens[::-1], 0, [0, 1, 2, 3]))
    (logits,) = feeder.feed(Rows(tokens[40:], 40, [5, 7, 4, 6]))
    assert torch.equal(logits, expected)
