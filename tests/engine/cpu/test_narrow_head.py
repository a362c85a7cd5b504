"""A head that knows the first ids: each row also has the tokens of its own context, and those alone, with the same bits."""

from typing import Any

import pytest
import torch

from paceline.engine.arrays import Array
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cpu import narrow_head
from paceline.engine.cpu.kernels.quantized.packing import BY_NAME
from paceline.engine.cpu.kernels.scalars import bits_of, pad_rows, tensor_of
from paceline.engine.cpu.linear import CpuLinear, QuantizedLinear, make_cpu_linear
from paceline.engine.cpu.narrow_head import MadeRows, NarrowHead, QuantizedRows, draft_vocab_size
from paceline.engine.models.model_config import UNKNOWN_LOGIT
from paceline.sampling_params import SamplingParams
from paceline.serving.propose_job import ProposeJob, ProposeSpec, Support
from paceline.speculation_params import DraftMode
from tests.engine.cpu.quantized.test_product import random_blocks

VOCAB, HIDDEN, NUM_FIRST, EOS = 200, 512, 40, 199
POOL = BlockPool(1, 1, lambda sources, destinations: None)
HEADS = [*BY_NAME, "bfloat16", "int8"]


def make_heads(name: str) -> tuple[CpuLinear, NarrowHead]:
    """A head that knows all tokens, and one with the same weights that knows the first."""
    if name in BY_NAME:
        whole = QuantizedLinear((random_blocks(name, VOCAB, HIDDEN),), None)
        return whole, NarrowHead(whole.first(NUM_FIRST), NUM_FIRST, QuantizedRows(whole, VOCAB), VOCAB)
    weight = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()

    def make(rows: torch.Tensor) -> CpuLinear:
        return make_cpu_linear(rows, None, "int8" if name == "int8" else "none")

    return make(weight), NarrowHead(make(weight[:NUM_FIRST]), NUM_FIRST, MadeRows(weight, make), VOCAB)


def make_job(tokens: list[int], **sampling: Any) -> ProposeJob:
    """A job that feeds the last of these tokens."""
    sequence = Sequence(SequenceOptions(SamplingParams(seed=1, **sampling), len(tokens), (EOS,)), POOL)
    sequence.tokens = tokens[:-1]
    return ProposeJob(sequence, tokens[-1:], ProposeSpec(4, DraftMode.GREEDY, Support(8, 1.0)))


def rows_of(num_rows: int) -> Array:
    return bits_of(torch.randn(num_rows, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16())


def logits_of(head: NarrowHead, jobs: list[ProposeJob], x: Array) -> torch.Tensor:
    head.hold([(job, 0) for job in jobs])
    return head.to_full_vocab(head(pad_rows(x, head.padded(len(x))))[: len(x)])


def known_to(logits: torch.Tensor) -> list[int]:
    """The tokens that the head has computed a logit for, without the first ids."""
    known = (logits > UNKNOWN_LOGIT).nonzero().flatten()
    assert known[:NUM_FIRST].tolist() == list(range(NUM_FIRST))
    return known[NUM_FIRST:].tolist()


@pytest.mark.parametrize("name", HEADS)
def test_a_row_has_the_bits_of_the_whole_head_at_its_own_tokens_in_any_company(name: str) -> None:
    whole, head = make_heads(name)
    contexts = [[1, 150, 60, 150], [77, 198, 3], [2, 5], [60, 61, 190, 41]]
    jobs, x = [make_job(context) for context in contexts], rows_of(len(contexts))
    expected = tensor_of(whole(pad_rows(x, whole.padded(len(x))))).float()
    # In turns, so that rows are added to those that are there; then together.
    alone = torch.cat([logits_of(head, [job], x[row : row + 1]) for row, job in enumerate(jobs)])
    together = logits_of(head, jobs, x)
    assert torch.equal(alone, together)
    for row, context in enumerate(contexts):
        own = sorted({token for token in (*context, EOS) if token >= NUM_FIRST})
        assert known_to(together[row]) == own
        columns = [*range(NUM_FIRST), *own]
        assert torch.equal(together[row, columns], expected[row, columns])


def test_rows_that_were_dropped_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_head, "MAX_ROWS", 4)
    whole, head = make_heads("Q8_0")
    x = rows_of(2)
    expected = tensor_of(whole(x)).float()
    for contexts in ([[50, 60]], [[70, 80]], [[50, 60], [90, 100]], [[60, 50]]):
        logits = logits_of(head, [make_job(context) for context in contexts], x[: len(contexts)])
        for row, context in enumerate(contexts):
            own = sorted((*context, EOS))
            assert known_to(logits[row]) == own
            assert torch.equal(logits[row, own], expected[row, own])


def test_a_context_adds_a_bounded_number_of_tokens_the_first_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_head, "MAX_CONTEXT_TOKENS", 3)
    logits = logits_of(make_heads("Q8_0")[1], [make_job([90, 50, 70, 60])], rows_of(1))
    assert known_to(logits[0]) == [50, 90, EOS]


def test_tokens_that_a_request_names_can_be_drawn() -> None:
    job = make_job([1], stop_token_ids=(50,), allowed_token_ids=(60, 2), logit_bias={70: 1.0})
    assert known_to(logits_of(make_heads("Q8_0")[1], [job], rows_of(1))[0]) == [50, 60, 70, EOS]


def test_neither_guesses_nor_masks_add_tokens() -> None:
    job = make_job([1, 100])
    job.pending += [150, VOCAB, VOCAB + 1]
    head = make_heads("Q8_0")[1]
    head.hold([(job, row) for row in range(4)])
    logits = head.to_full_vocab(head(rows_of(4)))
    assert [known_to(row) for row in logits] == [[100, EOS]] * 4


@pytest.mark.parametrize(
    ("wanted", "vocab_size", "num_first"),
    [(None, 151_936, 32_768), (None, 65_536, 32_768), (None, 49_152, 0), (0, 151_936, 0), (100, 99, 0), (100, 100, 0),
     (100, 101, 100)],
)  # fmt: skip
def test_small_vocabularies_stay_whole(wanted: int | None, vocab_size: int, num_first: int) -> None:
    assert draft_vocab_size(wanted, vocab_size) == num_first
