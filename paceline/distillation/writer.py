"""Has the target write conversations with itself, in large batches: decoding many at once is bound by
arithmetic, not by reading the weights, and some forty times as fast as one at a time.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from paceline.distillation.conversation import Conversation, Question, Record, Style
from paceline.distillation.frame import ChatFrame
from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.paged_attention import CpuPagedAttention

BLOCK_SIZE = 64
# Drawn from so many likeliest tokens: the text is material, its law need not be exact.
CANDIDATES = 64
USER = Style(temperature=1.0, top_p=0.95, max_tokens=160)
# Half of the answers as users get them at temperature 0, half as they get them above it.
ANSWERS = (Style(0.0, 1.0, 256), Style(0.8, 1.0, 256))
# Most rows of prompts in one forward, a longer prompt's own apart.
MAX_PROMPT_ROWS = 512


class Writer:
    """`records` yields conversations as they are finished, while there are users' turns to answer."""

    def __init__(
        self, model: CpuLlama, frame: ChatFrame, at_once: int, top: int, seed: int,
        questions: Iterable[Question], longest_question: int = 0,
        answers: Sequence[Style] = ANSWERS,
    ) -> None:  # fmt: skip
        """`top`: how many likeliest tokens of each distribution are kept, at most CANDIDATES.

        `longest_question`: tokens in any of `questions`.
        """
        longest_answer = max(each.max_tokens for each in answers)
        longest = len(frame.before) + longest_question + USER.max_tokens + len(frame.after) + longest_answer
        self._blocks_each = -(-longest // BLOCK_SIZE)
        self._model = model
        # The last place holds what all conversations begin with.
        self._attention = CpuPagedAttention(model.config, (at_once + 1) * self._blocks_each, BLOCK_SIZE)
        self._frame = frame
        self._frame_blocks = self._blocks(at_once)
        self._top = top
        self._random = np.random.default_rng(seed)
        self._styles = itertools.cycle(answers)
        self._questions = enumerate(questions)
        self._ends = torch.tensor(model.config.eos_token_ids)
        self._read_frame()
        # Who writes where; a place without a conversation has no more questions.
        self._places = {place: begun for place in range(at_once) if (begun := self._begin(place)) is not None}

    def records(self) -> Iterator[tuple[int, Record]]:
        """Conversations in the order they end, with the number of the question."""
        while self._places:
            for place in self._step():
                done = self._places.pop(place)
                if (begun := self._begin(place)) is not None:
                    self._places[place] = begun
                yield done.number, done.record

    def _blocks(self, place: int) -> list[int]:
        return list(range(place * self._blocks_each, (place + 1) * self._blocks_each))

    def _read_frame(self) -> None:
        """Its last token is left to each conversation: the first word is drawn after it."""
        begun, builder = self._frame.before[:-1], BatchBuilder()
        if begun:
            builder.add(begun, 0, self._frame_blocks, [False] * len(begun))
            self._forward(builder)

    def _begin(self, place: int) -> Conversation | None:
        asked = next(self._questions, None)
        if asked is None:
            return None
        num_cached = max(0, len(self._frame.before) - 1)
        used = -(-num_cached // BLOCK_SIZE)
        self._attention.copy_blocks(self._frame_blocks[:used], self._blocks(place)[:used])
        return Conversation(asked[0], self._frame, num_cached, USER, next(self._styles), asked[1])

    @torch.inference_mode()
    def _forward(self, builder: BatchBuilder) -> torch.Tensor:
        batch = builder.build(self._model.padded(builder.num_rows))
        return self._model.forward(batch, self._attention, self._attention.plan(batch.spans))

    @torch.inference_mode()
    def _step(self) -> list[int]:
        """One token for each; returns the places of those that are done."""
        builder, room = BatchBuilder(), MAX_PROMPT_ROWS
        fed: list[int] = []
        for place, conversation in self._places.items():
            num_rows = len(conversation.pending)
            if num_rows > 1 and room < min(num_rows, MAX_PROMPT_ROWS):
                continue
            room -= num_rows if num_rows > 1 else 0
            wanted = [False] * (num_rows - 1) + [True]
            builder.add(conversation.pending, len(conversation.tokens), self._blocks(place), wanted)
            conversation.fed()
            fed.append(place)
        self._write(fed, self._forward(builder))
        return [place for place in fed if self._places[place].is_done]

    def _write(self, places: list[int], logits: torch.Tensor) -> None:
        """logits: [num_places, vocab_size]."""
        total = logits.logsumexp(dim=-1, keepdim=True)
        top, ids = logits.topk(CANDIDATES, dim=-1)  # [num_places, CANDIDATES]
        tokens = self._draw(top, ids, [self._places[place].style for place in places])
        ends = torch.isin(tokens, self._ends).tolist()
        top_ids = ids[:, : self._top].to(torch.int32).numpy()
        top_logprobs = (top - total)[:, : self._top].to(torch.float16).numpy()
        for row, (place, token) in enumerate(zip(places, tokens.tolist(), strict=True)):
            self._places[place].write(token, ends[row], top_ids[row], top_logprobs[row])

    def _draw(self, top: torch.Tensor, ids: torch.Tensor, styles: list[Style]) -> torch.Tensor:
        """One token a row: [num_places]."""
        temperature = torch.tensor([[max(style.temperature, 1e-3)] for style in styles])
        probs = torch.softmax(top / temperature, dim=-1)
        before = probs.cumsum(dim=-1) - probs
        probs = probs * (before < torch.tensor([[style.top_p] for style in styles]))
        sums = probs.cumsum(dim=-1)
        uniforms = torch.from_numpy(self._random.random((len(styles), 1))).float() * sums[:, -1:]
        rank = torch.searchsorted(sums, uniforms, right=True).clamp_(max=CANDIDATES - 1)
        return ids.gather(1, rank).squeeze(1)
