"""Masks: what stands for unknown tokens in a draft that proposes several tokens in one forward (PARD, 2504.18583).

Mask j has the token id vocab_size + j. It stands j + 1 places behind the last known token, and from its row the draft
takes the token behind that place. No message and no context ever holds such an id.
"""

import torch

# [num_masks, hidden_size], in the weights of a draft that has learned to fill masks.
MASK_VECTORS = "mask_vectors"


def num_masks(tensors: dict[str, torch.Tensor]) -> int:
    """How many masks the model knows; 0 for all others."""
    return len(tensors[MASK_VECTORS]) if MASK_VECTORS in tensors else 0


def with_masks(embedding: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The vectors of tokens and masks: [vocab_size + num_masks, hidden_size]. Takes those of the masks out of `tensors`."""
    masks = tensors.pop(MASK_VECTORS, None)
    return embedding if masks is None else torch.cat([embedding, masks.to(embedding)])
