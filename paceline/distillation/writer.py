"""The writer: the target writes conversations with itself, many at the same time.

In a large batch arithmetic takes the time, not the reading of the weights. It is about forty times as fast as one
conversation at a time.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from paceline.distillation.conversations import ChatFrame, Conversation, Question, Record, Style
from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.llama import CpuLlama

BLOCK_SIZE = 64
# Tokens are sampled from this many likeliest ones. The text is only for training: its distribution need not be exact.
CANDIDATES = 64
USER = Style(temperature=1.0, top_p=0.95, max_tokens=160)
# Half of the answers are greedy, half are sampled.
ANSWERS = (Style(0.0, 1.0, 256), Style(0.8, 1.0, 256))
# Most prompt rows in one forward. A longer prompt runs too, with no other prompt beside it.
MAX_PROMPT_ROWS = 512


class Writer:
    """Writes one conversation for each question, `at_once` at the same time."""

    def __init__(
        self, model: CpuLlama, frame: ChatFrame, at_once: int, top: int, seed: int,
        questions: Iterable[Question], longest_question: int = 0,
        answers: Sequence[Style] = ANSWERS,
    ) -> None:  # fmt: skip
        """`top`: how many likeliest tokens of each distribution are kept, at most CANDIDATES.

        `longest_question`: the most tokens of a question.
        """
        longest_answer = max(each.max_tokens for each in answers)
        longest = len(frame.before) + longest_question + USER.max_tokens + len(frame.after) + longest_answer
        self._blocks_each = -(-longest // BLOCK_SIZE)
        self._model = model
        # The blocks after those of all conversations hold the frame's tokens, with which each conversation begins.
        self._attention = model.make_cache((at_once + 1) * self._blocks_each, BLOCK_SIZE)
        self._frame = frame
        self._frame_blocks = self._blocks(at_once)
        self._top = top
        self._random = np.random.default_rng(seed)
        self._styles = itertools.cycle(answers)
        self._questions = enumerate(questions)
        self._ends = torch.tensor(model.config.eos_token_ids)
        self._read_frame()
        # Conversations by the index of their blocks. An index without a conversation means that no questions are left.
        self._conversations = {index: begun for index in range(at_once) if (begun := self._begin(index)) is not None}

    def records(self) -> Iterator[tuple[int, Record]]:
        """Conversations in the order in which they end, each with the number of its question."""
        while self._conversations:
            for index in self._step():
                done = self._conversations.pop(index)
                if (begun := self._begin(index)) is not None:
                    self._conversations[index] = begun
                yield done.number, done.record

    def _blocks(self, index: int) -> list[int]:
        return list(range(index * self._blocks_each, (index + 1) * self._blocks_each))

    def _read_frame(self) -> None:
        """Feeds the frame without its last token. Each conversation feeds that token, to sample after it."""
        begun, builder = self._frame.before[:-1], BatchBuilder()
        if begun:
            builder.add(begun, 0, self._frame_blocks, [False] * len(begun))
            self._forward(builder)

    def _begin(self, index: int) -> Conversation | None:
        asked = next(self._questions, None)
        if asked is None:
            return None
        num_cached = max(0, len(self._frame.before) - 1)
        used = -(-num_cached // BLOCK_SIZE)
        self._attention.copy_blocks(self._frame_blocks[:used], self._blocks(index)[:used])
        return Conversation(asked[0], self._frame, num_cached, USER, next(self._styles), asked[1])

    @torch.inference_mode()
    def _forward(self, builder: BatchBuilder) -> torch.Tensor:
        batch = builder.build(self._model.padded(builder.num_rows))
        return self._model.forward(batch, self._attention, self._attention.plan(batch.spans))

    @torch.inference_mode()
    def _step(self) -> list[int]:
        """Writes one token of each conversation. Returns the indices of the conversations that are done."""
        builder, room = BatchBuilder(), MAX_PROMPT_ROWS
        fed: list[int] = []
        for index, conversation in self._conversations.items():
            num_rows = len(conversation.pending)
            if num_rows > 1 and room < min(num_rows, MAX_PROMPT_ROWS):
                continue
            room -= num_rows if num_rows > 1 else 0
            wanted = [False] * (num_rows - 1) + [True]
            builder.add(conversation.pending, len(conversation.tokens), self._blocks(index), wanted)
            conversation.fed()
            fed.append(index)
        self._write(fed, self._forward(builder))
        return [index for index in fed if self._conversations[index].is_done]

    def _write(self, indices: list[int], logits: torch.Tensor) -> None:
        """Samples and writes a token for each index; logits: [num_rows, vocab_size], a row for each index."""
        total = logits.logsumexp(dim=-1, keepdim=True)
        top, ids = logits.topk(CANDIDATES, dim=-1)  # [num_rows, CANDIDATES]
        tokens = self._sample(top, ids, [self._conversations[index].style for index in indices])
        ends = torch.isin(tokens, self._ends).tolist()
        top_ids = ids[:, : self._top].to(torch.int32).numpy()
        top_logprobs = (top - total)[:, : self._top].to(torch.float16).numpy()
        for row, (index, token) in enumerate(zip(indices, tokens.tolist(), strict=True)):
            self._conversations[index].write(token, ends[row], top_ids[row], top_logprobs[row])

    def _sample(self, top: torch.Tensor, ids: torch.Tensor, styles: list[Style]) -> torch.Tensor:
        """Samples one token per row: [num_rows]. top and ids: [num_rows, CANDIDATES], the likeliest tokens."""
        temperature = torch.tensor([[max(style.temperature, 1e-3)] for style in styles])
        probs = torch.softmax(top / temperature, dim=-1)
        before = probs.cumsum(dim=-1) - probs
        probs = probs * (before < torch.tensor([[style.top_p] for style in styles]))
        sums = probs.cumsum(dim=-1)
        uniforms = torch.from_numpy(self._random.random((len(styles), 1))).float() * sums[:, -1:]
        rank = torch.searchsorted(sums, uniforms, right=True).clamp_(max=CANDIDATES - 1)
        return ids.gather(1, rank).squeeze(1)
