"""The torch sampler: tensor operations for every kind of spec, on any device.

Its noise has the same integers as `paceline.noise`.
"""

import math
from collections.abc import Sequence as Seq

import torch
from torch.nn import functional

from paceline.engine.sampling.sampler import SampleAlike, sample_by_kind
from paceline.engine.sampling.specs import (
    Argmax,
    ArgmaxWithLenience,
    ComplementSample,
    GumbelMax,
    LenientSample,
    Sample,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    Score,
    TruncatedSample,
)
from paceline.noise import MIX_1, MIX_2
from paceline.sampling_params import SamplingParams

MASK_32 = 0xFFFFFFFF


def hash_ids(ids: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Returns one 32-bit integer for each key and token id: [num_keys, num_ids], int64.

    `low` and `high` are the halves of the keys: [num_keys, 1]; ids: [num_keys, num_ids] or [1, num_ids].
    """
    # int64 products overflow, but their low 32 bits are correct.
    x = ids ^ low
    x = ((x ^ (x >> 16)) * MIX_1) & MASK_32
    x = (x + high) & MASK_32
    x = ((x ^ (x >> 15)) * MIX_2) & MASK_32
    return x ^ (x >> 15)


def gumbel_of(ids: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    u = (hash_ids(ids, low, high).to(torch.float64) + 0.5) / 2**32
    return -torch.log(-torch.log1p(-u))


def gumbel(keys: list[int], num_ids: int, device: torch.device) -> torch.Tensor:
    """Gumbel noise for each key and all token ids: [num_keys, num_ids] float64."""
    low = torch.tensor([key & MASK_32 for key in keys], device=device).unsqueeze(1)
    high = torch.tensor([key >> 32 for key in keys], device=device).unsqueeze(1)
    return gumbel_of(torch.arange(num_ids, device=device).unsqueeze(0), low, high)


# How many of the likeliest tokens top-k, top-p and min-p look at: first the smaller number, then the larger one if that
# is not enough, then the whole vocabulary.
CANDIDATES = (256, 4096)


class TorchSampler:
    def __init__(self) -> None:
        self._samplers: dict[type[SampleSpec], SampleAlike] = {
            Argmax: self._argmax_specs,
            ArgmaxWithLenience: self._argmax_with_lenience,
            GumbelMax: self._gumbel_max,
            SampleTruncated: self._sample_truncated,
            SampleComplement: self._sample_complement,
            Score: lambda logits, specs: [None] * len(specs),
        }

    def supports(self, spec: SampleSpec) -> bool:
        return True

    def sample(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Sample]:
        """logits: [num_specs, vocab_size] float32."""
        return sample_by_kind(self._samplers, logits, specs)

    def _argmax_specs(self, logits: torch.Tensor, specs: list[Argmax]) -> list[int]:
        return _argmax(logits).tolist()

    def _argmax_with_lenience(self, logits: torch.Tensor, specs: list[ArgmaxWithLenience]) -> list[LenientSample]:
        """Accepts if p(draft) >= lenience * max p (2211.17192, A.5). Compares logits: the normalizer cancels."""
        tokens = _argmax(logits)
        best = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
        drafts = torch.tensor([spec.draft for spec in specs], device=logits.device).unsqueeze(1)
        margins = (best - logits.gather(1, drafts).squeeze(1)).tolist()
        accepts = [margin <= -math.log(spec.lenience) for margin, spec in zip(margins, specs, strict=True)]
        return [LenientSample(*pair) for pair in zip(tokens.tolist(), accepts, strict=True)]

    def _gumbel_max(self, logits: torch.Tensor, specs: list[GumbelMax]) -> list[int]:
        log_probs = probabilities(logits, [spec.sampling for spec in specs]).log()
        keys = [spec.key for spec in specs]
        return _argmax(log_probs + gumbel(keys, logits.shape[-1], logits.device)).tolist()

    def _sample_truncated(self, logits: torch.Tensor, specs: list[SampleTruncated]) -> list[TruncatedSample]:
        probs = probabilities(logits, [spec.sampling for spec in specs])
        size = min(max(spec.max_size for spec in specs), logits.shape[-1])
        ids = largest(logits, size)  # [num_specs, size]
        top = probs.gather(1, ids)
        before = top.cumsum(dim=-1) - top  # [num_specs, size] mass of likelier tokens
        limit = torch.tensor([[spec.max_size, spec.min_mass] for spec in specs], dtype=torch.float64, device=top.device)
        rank = torch.arange(size, device=top.device)
        keep = (rank < limit[:, :1]) & (before < limit[:, 1:]) & (top > 0)
        kept = top * keep
        kept = (kept / kept.cumsum(dim=-1)[:, -1:]).to(torch.float32)
        # Sample from the float32 probabilities that are sent: the verify result needs this exact q.
        token_rank, _ = _invert(kept.double(), [spec.uniform for spec in specs])
        sizes = keep.sum(dim=-1).tolist()
        tokens = ids.gather(1, token_rank.unsqueeze(1)).squeeze(1).tolist()
        ids_out, probs_out = ids.cpu().numpy(), kept.cpu().numpy()
        return [
            TruncatedSample(token, ids_out[row, :size], probs_out[row, :size])
            for row, (token, size) in enumerate(zip(tokens, sizes, strict=True))
        ]

    def _sample_complement(self, logits: torch.Tensor, specs: list[SampleComplement]) -> list[ComplementSample]:
        probs = probabilities(logits, [spec.sampling for spec in specs])
        sizes = [len(spec.support) for spec in specs]
        row_of = torch.arange(len(specs)).repeat_interleave(torch.tensor(sizes)).to(logits.device)
        ids = torch.cat([torch.from_numpy(spec.support) for spec in specs]).to(logits.device)
        inside = probs[row_of, ids]  # [sum of support sizes]
        # Sum over the complement. Because of rounding 1 - sum(inside) may be above 0 if only banned tokens are left.
        probs[row_of, ids] = 0
        tokens, masses = _invert(probs, [spec.uniform for spec in specs])
        parts = inside.to(torch.float32).cpu().split(sizes)
        rows = zip(tokens.tolist(), masses.tolist(), parts, strict=True)
        return [ComplementSample(token, mass, part.numpy()) for token, mass, part in rows]


def probabilities(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """The distribution after temperature and truncation: [num_specs, vocab_size] float64. Greedy rows are one-hot."""
    greedy = torch.tensor([p.is_greedy for p in params], device=logits.device)
    temperature = torch.tensor([p.temperature or 1.0 for p in params], dtype=torch.float64, device=logits.device)
    # Subtract the largest logit first: 0 divided by a tiny temperature stays 0 and does not overflow.
    below = logits.double() - logits.amax(dim=-1, keepdim=True)
    probs = functional.softmax(below / temperature.unsqueeze(1), dim=-1)
    cut = [row for row, p in enumerate(params) if not p.is_greedy and (p.top_k or p.top_p < 1 or p.min_p)]
    if cut:
        probs[cut] = _truncated(logits[cut], probs[cut], [params[row] for row in cut])
    if greedy.any():
        one_hot = functional.one_hot(_argmax(logits[greedy]), logits.shape[-1])
        probs[greedy] = one_hot.double()
    return probs


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the indices of each row's `count` largest values, largest first; of equals the lower index is first.

    values: [num_rows, num_values] -> [num_rows, count] int64. `topk` alone leaves open which of equals it takes.
    """
    if count == values.shape[-1]:
        return values.sort(dim=-1, descending=True, stable=True).indices
    # One more tells whether it equals the last: only then the whole row is compared.
    top, indices = values.topk(count + 1, dim=-1)
    top, indices, following = top[:, :count], indices[:, :count], top[:, count:]
    if count == 0:
        return indices
    least = top[:, -1:]  # [num_rows, 1]
    if bool((following == least).any()):
        num_taken = (top == least).sum(dim=-1, keepdim=True)
        is_equal = values == least
        is_taken = (values > least) | (is_equal & (is_equal.cumsum(dim=-1) <= num_taken))
        indices = is_taken.nonzero()[:, 1].view(len(values), count)
    else:
        indices = indices.sort(dim=-1).values
    order = values.gather(1, indices).sort(dim=-1, descending=True, stable=True).indices
    return indices.gather(1, order)


def _truncated(logits: torch.Tensor, probs: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Applies top-k, then top-p to what top-k leaves, then min-p. logits, probs: [num_rows, vocab_size]."""
    vocab_size = probs.shape[-1]
    kept = torch.empty_like(probs)
    short = list(range(len(params)))
    for count in (*(count for count in CANDIDATES if count < vocab_size), vocab_size):
        ids = largest(logits[short], count)
        found, complete = _keep_candidates(ids, probs[short], [params[row] for row in short])
        kept[short] = found
        short = [row for row, ok in zip(short, complete, strict=True) if not ok]
        if not short:
            break
    return kept


def _keep_candidates(
    ids: torch.Tensor, probs: torch.Tensor, params: list[SamplingParams]
) -> tuple[torch.Tensor, list[bool]]:
    """Zeroes all of probs: [num_rows, vocab_size] but the allowed ones of `ids`, the likeliest: [num_rows, count].

    Also returns for each row whether `count` tokens were enough.
    """
    count, vocab_size, device = ids.shape[-1], probs.shape[-1], probs.device
    top = probs.gather(1, ids)  # [num_rows, count]
    top_k = torch.tensor([[p.top_k or vocab_size] for p in params], device=device)
    top_p = torch.tensor([[p.top_p] for p in params], dtype=torch.float64, device=device)
    min_p = torch.tensor([[p.min_p] for p in params], dtype=torch.float64, device=device)
    in_top_k = torch.arange(count, device=device) < top_k
    sums = (top * in_top_k).cumsum(dim=-1)
    total = torch.where(top_k <= count, sums[:, -1:], probs.sum(dim=-1, keepdim=True))
    keep = in_top_k & ((sums - top < top_p * total) | (top_p == 1)) & (top >= min_p * top[:, :1])
    # The likeliest stays if top_p times the total is too small for a float.
    keep[:, 0] = True
    complete = (
        (top_k <= count) | ((top_p < 1) & (sums[:, -1:] >= top_p * total)) | (top[:, -1:] < min_p * top[:, :1])
    ) | (count == vocab_size)
    if count < vocab_size:
        # If top_k is larger than `count`, top_p needs the total over top_k tokens, which is not known here.
        complete &= (top_k <= count) | (top_k == vocab_size)
    kept = top * keep
    # Cumulative sum, because torch may split a plain sum over one row between threads in any order.
    kept = kept / kept.cumsum(dim=-1)[:, -1:]
    return torch.zeros_like(probs).scatter_(1, ids, kept), complete.squeeze(1).tolist()


def _argmax(values: torch.Tensor) -> torch.Tensor:
    """Index of each row's first largest value: [num_rows]. On a CPU numpy is much faster than torch."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().argmax(axis=-1))
    return values.argmax(dim=-1)


def _invert(probs: torch.Tensor, uniforms: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples an index from each row of probs: [num_rows, vocab_size] float64, unnormalized; undefined for zeros.

    Also returns the rows' totals: [num_rows]. The index is the first whose cumulative sum exceeds uniform * total.
    """
    sums = probs.cumsum(dim=-1)
    wanted = torch.tensor(uniforms, dtype=torch.float64, device=probs.device).unsqueeze(1) * sums[:, -1:]
    index = torch.searchsorted(sums, wanted, right=True).squeeze(1).clamp_(max=probs.shape[-1] - 1)
    return index, sums[:, -1]
