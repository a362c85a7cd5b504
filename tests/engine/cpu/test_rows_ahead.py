"""Attention of rows that see each other, also those behind them, over a context that is only written."""

import pytest
import torch

from paceline.engine.batch import TokenSpan
from paceline.engine.cpu.kernels.attention import TILE_ROWS, Scoring
from paceline.engine.cpu.paged_attention import CACHE_DTYPES
from tests.engine.cpu.test_paged_attention import Reference, attend, random_qkv, scattered
from tests.engine.feeding import load_llama


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("cache", CACHE_DTYPES)
@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize("window", [0, 21])
# Of one tile and of several, at the start and the end of blocks and across them.
@pytest.mark.parametrize(("first", "num_rows"), [(0, 3), (56, 8), (61, 5), (61, 2 * TILE_ROWS + 3), (64, 16)])
def test_rows_that_see_ahead_attend_as_the_librarys(
    first: int, num_rows: int, window: int, block_size: int, cache: str
) -> None:
    """Two sequences in one batch: the rows of one block see each other, and nothing of the other sequence."""
    model = load_llama("dummy:tiny", cache=cache)
    layer, total = model.layers[0], first + num_rows
    qkv = random_qkv(model.config, torch.float32, total)
    blocks = scattered(total, block_size)
    tables = [blocks, [each + 2 * len(blocks) for each in blocks]]
    attention = model.make_cache(4 * len(blocks), block_size, num_layers=1)
    scoring = Scoring(window, 0.0)
    orders = [torch.arange(total), torch.arange(total).flip(0)]
    context = [TokenSpan(number * first, first, 0, table) for number, table in enumerate(tables)]
    ahead = [TokenSpan(2 * first + number * num_rows, num_rows, first, table) for number, table in enumerate(tables)]
    rows = torch.cat([*(qkv[order[:first]] for order in orders), *(qkv[order[first:]] for order in orders)])
    plan = attention.plan(ahead, context if first else (), sees_ahead=True)
    found = attend(rows.numpy(), plan, layer.rotation, scoring, 1e-5, attention.cache[0])
    for number, order in enumerate(orders):
        reference = Reference(model.config, layer.rotation, qkv[order])
        keys, values = reference.keys.double(), reference.values.double()
        group = reference.queries.shape[1] // keys.shape[1]
        scores = torch.einsum("qhd,khd->hqk", reference.queries[first:].double(), keys.repeat_interleave(group, 1))
        distance = torch.arange(first, total)[:, None] - torch.arange(total)
        is_seen = distance < (window or total)
        weights = (scores * keys.shape[2] ** -0.5).masked_fill(~is_seen, -torch.inf).softmax(-1)
        expected = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1)).reshape(num_rows, -1)
        mine = torch.from_numpy(found[ahead[number].first_token :][:num_rows]).double()
        atol = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 4e-2}[cache]
        torch.testing.assert_close(mine, expected, rtol=0, atol=atol)
