"""A model in this process, as its server would load it: exact samples of many texts, and logits of one."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.engine_config import EngineConfig
from paceline.engine.models.quantization import DTYPES
from paceline.engine.models.weights import load_model
from paceline.engine.threads import CORES, set_num_workers

BLOCK_SIZE = 64
# Rows of one forward pass over a text.
CHUNK_ROWS = 256
PROGRESS_S = 20.0


class Reader:
    """One model on this process's threads."""

    def __init__(self, model: str, quantization: str, max_model_len: int) -> None:
        set_num_workers(len(CORES))
        config = EngineConfig(model=model, quantization=quantization)
        loaded = load_model(model, DTYPES[config.dtype], print, config.device, config.keeps_blocks)
        self.tokenizer_files = loaded.tokenizer_files
        self.vocab_size = loaded.config.vocab_size
        self.ends = frozenset(loaded.config.eos_token_ids)
        self.max_model_len = min(max_model_len, loaded.config.max_model_len)
        self._model = CpuLlama(loaded.config, loaded.tensors, quantization, self.max_model_len, batch_invariant=True)
        self._blocks_each = -(-self.max_model_len // BLOCK_SIZE)

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], first: int) -> torch.Tensor:
        """Returns logits for the tokens at positions `first` to the end: [num_rows, vocab_size] float32."""
        attention = self._model.make_cache(self._blocks_each, BLOCK_SIZE)
        blocks, found = list(range(self._blocks_each)), []
        # The last token is predicted, not read.
        for start in range(0, len(tokens) - 1, CHUNK_ROWS):
            chunk = list(tokens[start : min(start + CHUNK_ROWS, len(tokens) - 1)])
            builder = BatchBuilder()
            builder.add(chunk, start, blocks, [start + row + 1 >= first for row in range(len(chunk))])
            found.append(self._forward(builder, attention))
        return torch.cat([each for each in found if each.shape[0]])

    def continuations(
        self, prompts: Sequence[list[int]], temperature: float, longest: int, at_once: int, seed: int
    ) -> list[list[int]]:
        """Draws a continuation of each prompt from the whole distribution, to its end or `longest` tokens."""
        random = np.random.default_rng(seed)
        attention = self._model.make_cache(at_once * self._blocks_each, BLOCK_SIZE)
        waiting = list(enumerate(prompts))[::-1]
        done: list[list[int]] = [[] for _ in prompts]
        running: dict[
            int, tuple[int, list[int], list[int]]
        ] = {}  # place -> prompt's number, tokens read, tokens to read
        tell = _every(PROGRESS_S)
        while waiting or running:
            for place in range(at_once):
                if waiting and place not in running:
                    number, prompt = waiting.pop()
                    running[place] = (number, [], prompt)
            for place, token in self._step(running, attention, temperature, random).items():
                number, read, unread = running[place]
                read += unread
                done[number].append(token)
                running[place] = (number, read, [token])
                is_full = len(done[number]) >= longest or len(read) + 1 >= self.max_model_len
                if token in self.ends or is_full:
                    del running[place]
            tell(lambda: f"  {sum(map(len, done))} tokens, {len(waiting) + len(running)} texts to go")
        return done

    @torch.inference_mode()
    def _step(
        self,
        running: dict[int, tuple[int, list[int], list[int]]],
        attention: object,
        temperature: float,
        random: np.random.Generator,
    ) -> dict[int, int]:
        builder = BatchBuilder()
        for place, (_, read, unread) in running.items():
            blocks = list(range(place * self._blocks_each, (place + 1) * self._blocks_each))
            builder.add(unread, len(read), blocks, [False] * (len(unread) - 1) + [True])
        logits = self._forward(builder, attention)
        if temperature == 0:
            tokens = logits.argmax(-1)
        else:
            sums = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
            wanted = torch.from_numpy(random.random((len(running), 1))) * sums[:, -1:]
            tokens = torch.searchsorted(sums, wanted, right=True).squeeze(1).clamp_(max=self.vocab_size - 1)
        return dict(zip(running, tokens.tolist(), strict=True))

    def _forward(self, builder: BatchBuilder, attention: object) -> torch.Tensor:
        batch = builder.build(self._model.padded(builder.num_tokens))
        known = self._model.logits(self._model.forward(batch, attention, attention.plan(batch.spans)))  # type: ignore[attr-defined,arg-type]
        return self._model.head.to_full_vocab(known) if known.shape[0] else known


def _every(seconds: float) -> Callable[[Callable[[], str]], None]:
    """Prints at most once in this many seconds."""
    last_s = time.perf_counter()

    def tell(text: Callable[[], str]) -> None:
        nonlocal last_s
        if time.perf_counter() - last_s >= seconds:
            last_s = time.perf_counter()
            print(text(), flush=True)

    return tell
