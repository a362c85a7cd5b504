"""The only caller of the model: some rows of some jobs through one forward and one sampling."""

from collections.abc import Iterable

import torch

from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.llama import Llama
from paceline.engine.cpu.paged_attention import PagedAttention
from paceline.engine.sampling.logprobs import Observation, observe
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import Draw, Drawn
from paceline.engine.scheduling.job import Job

# Plain rounds and rounds with drafts; they fit into the smallest block.
WARM_UP_ROWS = 8


class Runner:
    """Runs engine steps. Belongs to the worker's thread."""

    def __init__(self, model: Llama, attention: PagedAttention) -> None:
        self._model = model
        self._attention = attention
        self._sampler = Sampler()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Forwards of the usual sizes, in the first block: the library prepares itself for each, and the first
        request need not wait for that. What they leave in the block belongs to no sequence."""
        for num_rows in range(1, min(WARM_UP_ROWS, self._model.max_model_len) + 1):
            builder = BatchBuilder()
            builder.add([0] * num_rows, 0, [0], [False] * (num_rows - 1) + [True])
            batch = builder.build(self._model.padded(builder.num_rows))
            self._model.forward(batch, self._attention, self._attention.plan(batch.spans))

    @torch.inference_mode()
    def step(self, shares: list[tuple[Job, int]]) -> None:
        """Feeds the first so many pending rows of each job, and lets each absorb its results."""
        builder = BatchBuilder()
        draws = []
        for job, num_rows in shares:
            tokens = job.pending[:num_rows]
            wanted = job.draws(num_rows)
            sequence = job.sequence
            builder.add(tokens, sequence.length, sequence.blocks, [draw is not None for draw in wanted])
            draws.append([draw for draw in wanted if draw is not None])
        batch = builder.build(self._model.padded(builder.num_rows))
        plan = self._attention.plan(batch.spans)
        flat = [draw for of_job in draws for draw in of_job]
        known = self._model.forward(batch, self._attention, plan)  # [num_wanted, head_size]
        results = iter(self._draw(known, flat) if flat else [])
        for (job, num_rows), of_job in zip(shares, draws, strict=True):
            job.sequence.tokens += job.pending[:num_rows]
            del job.pending[:num_rows]
            mine = [next(results) for _ in of_job]
            job.observe([observation for _, observation in mine if observation is not None])
            job.absorb([value for value, _ in mine])

    def _draw(self, known: torch.Tensor, draws: list[Draw]) -> Iterable[tuple[Drawn, Observation | None]]:
        head = self._model.head
        if not head.knows_all and all(draw.takes_any_order for draw in draws):
            return ((each, None) for each in head.with_ids(self._sampler.sample(known, draws)))
        logits = head.over_vocabulary(known)
        drawn = self._sampler.sample(logits, draws)
        return zip(drawn, observe(logits, draws, drawn), strict=True)
