"""Lets the target write conversations with itself, in batches large enough to be compute-bound."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.distillation.conversations import ChatFrame, Conversation, Question, Record, Style
from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.kernels.scalars import bits_of, tensor_of
from paceline.engine.cpu.llama import CpuLlama

BLOCK_SIZE = 64
# Top-k of sampling. Training text need not follow the exact distribution.
CANDIDATES = 64
USER = Style(temperature=1.0, top_p=0.95, max_tokens=160)
# Half of the answers are greedy.
ANSWERS = (Style(0.0, 1.0, 256), Style(0.8, 1.0, 256))
# Prompt tokens per forward pass. A longer prompt runs with no other prompt.
MAX_PROMPT_TOKENS = 512


class Writer:
    def __init__(
        self, model: CpuLlama, frame: ChatFrame, concurrency: int, top: int, seed: int,
        questions: Iterable[Question], longest_question: int = 0,
        answers: Sequence[Style] = ANSWERS, taps: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`top`: likeliest tokens to record per distribution, at most CANDIDATES.

        taps: numbers of layers after which to keep the hidden states, increasing.
        """
        self._taps = taps
        longest_answer = max(each.max_tokens for each in answers)
        longest = len(frame.before) + longest_question + USER.max_tokens + len(frame.after) + longest_answer
        self._blocks_each = -(-longest // BLOCK_SIZE)
        self._model = model
        # The last blocks hold the frame's tokens, which every conversation begins with.
        self._attention = model.make_cache((concurrency + 1) * self._blocks_each, BLOCK_SIZE)
        self._frame = frame
        self._frame_blocks = self._blocks(concurrency)
        self._top = top
        self._random = np.random.default_rng(seed)
        self._styles = itertools.cycle(answers)
        self._questions = enumerate(questions)
        self._ends = torch.tensor(model.config.eos_token_ids)
        self._read_frame()
        # Conversations by the index of their blocks; an index is missing once no questions are left.
        self._conversations = {
            index: begun for index in range(concurrency) if (begun := self._begin(index)) is not None
        }

    def records(self) -> Iterator[tuple[int, Record]]:
        while self._conversations:
            for index in self._step():
                done = self._conversations.pop(index)
                if (begun := self._begin(index)) is not None:
                    self._conversations[index] = begun
                yield done.number, done.record

    def _blocks(self, index: int) -> list[int]:
        return list(range(index * self._blocks_each, (index + 1) * self._blocks_each))

    def _read_frame(self) -> None:
        """Caches the frame without its last token, which each conversation feeds to sample after it."""
        begun, builder = self._frame.before[:-1], BatchBuilder()
        self._frame_states: list[NDArray[np.uint16]] = []
        if begun:
            builder.add(begun, 0, self._frame_blocks, [False] * len(begun))
            _, self._frame_states = self._forward(builder)

    def _begin(self, index: int) -> Conversation | None:
        asked = next(self._questions, None)
        if asked is None:
            return None
        num_cached = max(0, len(self._frame.before) - 1)
        used = -(-num_cached // BLOCK_SIZE)
        self._attention.copy_blocks(self._frame_blocks[:used], self._blocks(index)[:used])
        begun = Conversation(asked[0], self._frame, num_cached, USER, next(self._styles), asked[1])
        for states in self._frame_states:
            begun.keep(states)
        return begun

    @torch.inference_mode()
    def _forward(self, builder: BatchBuilder) -> tuple[torch.Tensor, list[NDArray[np.uint16]]]:
        """Returns logits, and with taps the hidden states of each of the builder's sequences."""
        batch = builder.build(self._model.padded(builder.num_tokens))
        plan = self._attention.plan(batch.spans)
        if not self._taps:
            return self._model.logits(self._model.forward(batch, self._attention, plan)), []
        rows, states = self._model.forward_with_states(batch, self._attention, plan, self._taps)
        tapped = np.stack([bits_of(tensor_of(each).bfloat16()) for each in states], axis=1)
        return self._model.logits(rows), [tapped[span.first_token :][: span.num_tokens].copy() for span in batch.spans]

    @torch.inference_mode()
    def _step(self) -> list[int]:
        builder, budget = BatchBuilder(), MAX_PROMPT_TOKENS
        fed: list[int] = []
        for index, conversation in self._conversations.items():
            num_tokens = len(conversation.pending)
            if num_tokens > 1 and budget < min(num_tokens, MAX_PROMPT_TOKENS):
                continue
            budget -= num_tokens if num_tokens > 1 else 0
            wanted = [False] * (num_tokens - 1) + [True]
            builder.add(conversation.pending, len(conversation.tokens), self._blocks(index), wanted)
            conversation.fed()
            fed.append(index)
        logits, states = self._forward(builder)
        for index, each in zip(fed, states, strict=bool(states)):
            self._conversations[index].keep(each)
        self._write(fed, logits)
        return [index for index in fed if self._conversations[index].is_done]

    def _write(self, indices: list[int], logits: torch.Tensor) -> None:
        """logits: [num_indices, vocab_size]."""
        total = logits.logsumexp(dim=-1, keepdim=True)
        top, ids = logits.topk(CANDIDATES, dim=-1)  # [num_indices, CANDIDATES]
        tokens = self._sample(top, ids, [self._conversations[index].style for index in indices])
        ends = torch.isin(tokens, self._ends).tolist()
        top_ids = ids[:, : self._top].to(torch.int32).numpy()
        top_logprobs = (top - total)[:, : self._top].to(torch.float16).numpy()
        for row, (index, token) in enumerate(zip(indices, tokens.tolist(), strict=True)):
            self._conversations[index].write(token, ends[row], top_ids[row], top_logprobs[row])

    def _sample(self, top: torch.Tensor, ids: torch.Tensor, styles: list[Style]) -> torch.Tensor:
        """Returns [num_indices]. top, ids: logits and ids of the likeliest tokens, [num_indices, CANDIDATES]."""
        temperature = torch.tensor([[max(style.temperature, 1e-3)] for style in styles])
        probs = torch.softmax(top / temperature, dim=-1)
        before = probs.cumsum(dim=-1) - probs
        probs = probs * (before < torch.tensor([[style.top_p] for style in styles]))
        sums = probs.cumsum(dim=-1)
        uniforms = torch.from_numpy(self._random.random((len(styles), 1))).float() * sums[:, -1:]
        rank = torch.searchsorted(sums, uniforms, right=True).clamp_(max=CANDIDATES - 1)
        return ids.gather(1, rank).squeeze(1)
