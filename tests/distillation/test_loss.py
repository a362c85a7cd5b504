"""The closed-form gradients are what autograd finds for the plainly written losses."""

import numpy as np
import pytest
import torch

from paceline.distillation.gradient import differentiate, differentiate_in_torch
from paceline.distillation.loss import CHUNK_ROWS, Divergence, FrozenHead, Goal
from paceline.engine.cpu.kernels.scalars import bits_of

HIDDEN, HEAD, TOP = 16, 40, 6


def make_goal(num_rows: int) -> Goal:
    """Some tokens of each row's top are not in the head, and some mass is outside the top."""
    indices = torch.stack([torch.randperm(HEAD + 10)[:TOP] for _ in range(num_rows)]).clamp(max=HEAD)
    probs = torch.softmax(torch.randn(num_rows, TOP) * 2, dim=-1) * 0.9
    return Goal(indices, probs)


def plain_loss(logits: torch.Tensor, goal: Goal, divergence: Divergence) -> torch.Tensor:
    """Written out row by row."""
    total = torch.zeros(())
    for row, q in enumerate(logits.softmax(dim=-1)):
        known = [(int(at), p) for at, p in zip(goal.indices[row], goal.probs[row], strict=True) if at < HEAD]
        if divergence is Divergence.OVERLAP:
            total = total + 1 - sum(torch.minimum(q[at], p) for at, p in known)
            continue
        p_rest = 1 - sum(p for _, p in known)
        q_rest = 1 - sum(q[at] for at, _ in known)
        total = total + sum(p * (p / q[at]).log() for at, p in known) + p_rest * (p_rest / q_rest).log()
    return total / len(logits)


@pytest.mark.parametrize("divergence", list(Divergence))
def test_loss_and_gradient_are_those_of_the_definition(divergence: Divergence) -> None:
    torch.manual_seed(0)
    weight, goal = torch.randn(HEAD, HIDDEN), make_goal(7)
    hidden = torch.randn(7, HIDDEN, requires_grad=True)
    loss = FrozenHead(weight).loss(hidden, goal, divergence)
    loss.backward()
    found, hidden.grad = hidden.grad, None
    expected = plain_loss(hidden @ weight.T, goal, divergence)
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(found, hidden.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("divergence", list(Divergence))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_devices_operations_find_the_same(divergence: Divergence, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    goal, logits = make_goal(9), torch.randn(9, HEAD).to(dtype)
    by_overlap = divergence is Divergence.OVERLAP
    losses, by_logits = differentiate_in_torch(logits, goal.indices, goal.probs, by_overlap)
    found = np.empty(9, np.float32)
    differentiate(bits_of(logits), goal.indices.numpy(), goal.probs.numpy(), by_overlap, found)
    np.testing.assert_allclose(found, losses.numpy(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logits, by_logits, rtol=1e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-6)


def test_chunks_add_up() -> None:
    torch.manual_seed(0)
    rows = CHUNK_ROWS + 3
    weight, goal, hidden = torch.randn(HEAD, HIDDEN), make_goal(rows), torch.randn(rows, HIDDEN)
    head = FrozenHead(weight)
    whole = head.loss(hidden, goal, Divergence.KL)
    parts = [slice(0, 5), slice(5, rows)]
    sums = [
        float(head.loss(hidden[part], Goal(goal.indices[part], goal.probs[part]), Divergence.KL)) * len(hidden[part])
        for part in parts
    ]
    assert float(whole) == pytest.approx(sum(sums) / rows, rel=1e-5)


def test_agreement_is_one_where_the_draft_is_the_target() -> None:
    torch.manual_seed(0)
    weight, hidden = torch.randn(HEAD, HIDDEN), torch.randn(9, HIDDEN)
    probs, indices = torch.softmax(hidden @ weight.T, dim=-1).topk(TOP, dim=-1)
    found = FrozenHead(weight).agreement(hidden, Goal(indices, probs))
    assert (found.top_1, found.num_rows) == (9, 9)
    assert found.alpha == pytest.approx(float(probs.sum()), rel=1e-4)
    elsewhere = Goal(torch.full_like(indices, HEAD), probs)
    assert FrozenHead(weight).agreement(hidden, elsewhere).alpha == 0
