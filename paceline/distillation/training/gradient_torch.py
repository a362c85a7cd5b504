"""The gradient in torch's operations, for devices that the kernel of `gradient` does not run on."""

import torch

TINY = 1e-9
LEAST_REST = 1e-6


def differentiate(
    logits: torch.Tensor, indices: torch.Tensor, probs: torch.Tensor, by_overlap: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns losses: [num_rows] and the gradient: [num_rows, head_size].

    logits: [num_rows, head_size]; indices and probs: [num_rows, top].
    """
    q = logits.float().softmax(dim=-1)
    inside = indices < q.shape[-1]
    indices = indices.clamp(max=q.shape[-1] - 1)
    p, q_top = probs * inside, q.gather(1, indices) * inside
    if by_overlap:
        below = (q_top < p) * q_top
        factor = below.sum(dim=-1, keepdim=True)
        losses = 1 - torch.minimum(q_top, p).sum(dim=-1)
        added = -below
    else:
        p_rest = (1 - p.sum(dim=-1, keepdim=True)).clamp_min(0)
        q_rest = (1 - q_top.sum(dim=-1, keepdim=True)).clamp_min(LEAST_REST)
        factor = 1 - p_rest / q_rest
        losses = (p * (p.clamp_min(TINY) / q_top.clamp_min(TINY)).log()).sum(dim=-1)
        losses += (p_rest * (p_rest.clamp_min(TINY) / q_rest).log()).squeeze(1)
        added = q_top * (p_rest / q_rest) - p
    gradient = (q * factor).scatter_add_(1, indices, added * inside)
    return losses, gradient.to(logits.dtype)
