"""Samples with the table's kernels outside of a program: a copy to the GPU, and one back."""

from collections.abc import Sequence as Seq

import numpy as np
import torch

from paceline.engine.cuda.forward_plan import Field, Mirror
from paceline.engine.cuda.sampling.encoding import Results, decode, encode, sample_remainder, without_uncodable
from paceline.engine.cuda.sampling.spec_table import MOST, Column, Found, SampleTable, SpecTable
from paceline.engine.cuda.sampling.token_selection import sample_all
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.engine.sampling.torch_sampler import TorchSampler


class TableSampler:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampler = Sampler(TorchSampler())

    def sample(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Sample]:
        """Samples by Argmax and GumbelMax specs. logits: [num_specs, vocab_size] float32."""
        (num_rows, vocab_size), codable = logits.shape, without_uncodable(specs)
        # Of specs without a distribution.
        no_ids, no_probs = np.empty((num_rows, 0), np.int32), np.empty((num_rows, 0), np.float32)
        table = Mirror([Field((num_rows, len(Column)), torch.float64)], self._device)
        found = Mirror([Field((num_rows, len(Found)), torch.float64)], self._device)
        [numbers], [samples] = table.on_host, found.on_host
        encode(codable, vocab_size, numbers, no_ids)
        table.send()
        [on_device], [found_on_device] = table.on_device, found.on_device
        ids = logits.new_empty((num_rows, MOST), dtype=torch.int32)
        probs = logits.new_empty(ids.shape)
        sample_all(logits, SpecTable(on_device, ids), SampleTable(found_on_device, ids, probs))
        found.fetch()
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        decoded = decode(codable, Results(samples, no_ids, no_probs))
        left = [row for row, sample in enumerate(decoded) if sample is None]
        for row, sample, _ in sample_remainder(self._sampler, logits, specs, left):
            decoded[row] = sample
        return decoded
