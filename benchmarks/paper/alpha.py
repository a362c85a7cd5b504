"""alpha of every drafter along the target's own tokens: by sum min(p, q) (corollary 3.6), and by counting.

Counting draws one draft from q in every context and accepts it by algorithm 1, so counted minus expected is a sum of
independent coins minus their probabilities. At temperature 0 both distributions are their argmax (section 2.2), except
for the uniform drafter, which has none.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.paper.drafters import Bigram, Copy, Distribution, LookUp, Ngrams, Uniform, Unigram
from benchmarks.paper.estimators import accepted, accepted_greedily, overlap, rejection_sampling
from benchmarks.paper.models import PROGRESS_S, Reader
from benchmarks.paper.published import LENIENCES
from benchmarks.paper.results import Setup
from paceline.distillation.conversations import read_tokenizer
from paceline.prompts import PromptRecord, read_prompts

TEMPERATURES = (0, 1)
# A text with its prompt, at most; and at once.
MAX_MODEL_LEN, AT_ONCE = 1024, 16
LONGEST_ANSWER = 320
DRAFT_QUANTIZATION = "int8"
MODELS = ("draft model", "target in int8")
LOOK_UPS: dict[str, LookUp] = {"n-gram look-up": Ngrams(), "context copy": Copy()}
DRAFTERS = ("random", "unigram", "bigram", *LOOK_UPS, *MODELS)
# Texts of one half of the prompts are predicted by counts over the other half's.
FOLDS = 2


def write_texts(setup: Setup) -> dict[str, Any]:
    """Generates the target's continuations at both temperatures, over all prompts in turn, until there are enough
    tokens.
    """
    reader = Reader(setup.target, setup.target_quantization, MAX_MODEL_LEN)
    records = read_prompts("--prompts", Path(setup.prompts))
    prompts = encode(reader, records)
    texts: dict[str, list[dict[str, Any]]] = {}
    for temperature in TEMPERATURES:
        found: list[dict[str, Any]] = []
        # A greedy text is the same each time: one pass over the prompts is all there is.
        for turn in range(1 if temperature == 0 else 1000):
            answers = reader.continuations(prompts, temperature, LONGEST_ANSWER, AT_ONCE, setup.seed + turn)
            found += [
                {"prompt": number, "category": records[number].category, "tokens": answer}
                for number, answer in enumerate(answers)
            ]
            if sum(len(each["tokens"]) for each in found) >= setup.tokens:
                break
        texts[str(temperature)] = found
    return {"prompts": prompts, "texts": texts}


def encode(reader: Reader, records: Sequence[PromptRecord]) -> list[list[int]]:
    """Uses the target's chat template, if any."""
    tokenizer = read_tokenizer(reader.tokenizer_files)
    prompts = []
    for record in records:
        text = record.text
        if tokenizer.chat_template is not None:
            messages = [{"role": "user", "content": text}] if isinstance(record.prompt, str) else record.prompt
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer.encode(text, add_special_tokens=False)[: MAX_MODEL_LEN // 2])
    return prompts


class Judge:
    """p and q of every drafter in the same contexts."""

    def __init__(self, setup: Setup, written: dict[str, Any]) -> None:
        self._target = Reader(setup.target, setup.target_quantization, MAX_MODEL_LEN)
        self._models = {
            "draft model": Reader(setup.draft, DRAFT_QUANTIZATION, MAX_MODEL_LEN),
            "target in int8": Reader(setup.target, DRAFT_QUANTIZATION, MAX_MODEL_LEN),
        }
        self._prompts: list[list[int]] = written["prompts"]
        self._counts = [self._counted(written, fold) for fold in range(FOLDS)]
        self._generator = torch.Generator().manual_seed(setup.seed)

    def _counted(self, written: dict[str, Any], fold: int) -> dict[str, Distribution]:
        """Counts prompts and texts of all folds except this one."""
        corpus = [prompt for number, prompt in enumerate(self._prompts) if number % FOLDS != fold]
        for texts in written["texts"].values():
            corpus += [text["tokens"] for text in texts if text["prompt"] % FOLDS != fold]
        size = self._target.vocab_size
        return {"random": Uniform(size), "unigram": Unigram(corpus, size), "bigram": Bigram(corpus, size)}

    @torch.inference_mode()
    def judge(self, text: dict[str, Any], temperature: int) -> dict[str, dict[str, float]]:
        """Returns sums over a text's tokens, by drafter."""
        prompt = self._prompts[text["prompt"]]
        tokens, first = prompt + text["tokens"], len(prompt)
        logits = self._target.logits(tokens, first)  # [num_rows, vocab_size], as all that follow
        qs = {name: drafter.along(tokens, first) for name, drafter in self._counts[text["prompt"] % FOLDS].items()} | {
            name: torch.softmax(model.logits(tokens, first), -1) for name, model in self._models.items()
        }
        found = {
            name: self._greedy(logits, self._draw(q, name == "random"))
            | ({"overlap": float(q[:, 0].sum())} if name == "random" else {})
            for name, q in qs.items()
        } if temperature == 0 else self._sampled(torch.softmax(logits, -1), qs)  # fmt: skip
        for name, look_up in LOOK_UPS.items():
            proposed = look_up.along(tokens, first)
            found[name] = self._greedy(logits, proposed) if temperature == 0 else self._looked_up(logits, proposed)
        return found

    def _draw(self, q: torch.Tensor, is_uniform: bool) -> torch.Tensor:
        """Draws [num_rows]. At temperature 0 takes the likeliest token, or any for a uniform q."""
        if is_uniform:
            return torch.randint(q.shape[1], (q.shape[0],), generator=self._generator)
        return q.argmax(-1)

    def _greedy(self, logits: torch.Tensor, drafts: torch.Tensor) -> dict[str, float]:
        """drafts: [num_rows], -1 for none."""
        is_draft = drafts >= 0
        of_drafts = drafts.clamp(min=0)
        hits = float(((of_drafts == logits.argmax(-1)) & is_draft).sum())
        lenient = {
            f"overlap {lenience}": float((accepted_greedily(logits, of_drafts, lenience) & is_draft).sum())
            for lenience in LENIENCES
        }
        # One-hot p and q: the sum of minima is 1 or 0, and so is 1 / M.
        return {"overlap": hits, "accepted": hits, "variance": 0.0, "drafted": float(is_draft.sum())} | lenient

    def _sampled(self, p: torch.Tensor, qs: dict[str, torch.Tensor]) -> dict[str, dict[str, float]]:
        found = {}
        for name, q in qs.items():
            chances = overlap(p, q).double()
            drafts = torch.multinomial(q, 1, generator=self._generator).squeeze(1)
            uniforms = torch.rand(p.shape[0], generator=self._generator)
            rejection = rejection_sampling(p, q)
            at_p, at_q = (each.gather(1, drafts.unsqueeze(1)).squeeze(1) for each in (p, q))
            found[name] = {
                "overlap": float(chances.sum()),
                "accepted": float(accepted(p, q, drafts, uniforms).sum()),
                "variance": float((chances * (1 - chances)).clamp(min=0).sum()),
                "drafted": float(p.shape[0]),
                "rejection": float(rejection.double().sum()),
                "rejection accepted": float((uniforms * at_q < at_p * rejection).sum()),
            } | {f"overlap {lenience}": float(overlap(p, q, lenience).double().sum()) for lenience in LENIENCES}
        return found

    def _looked_up(self, logits: torch.Tensor, proposed: torch.Tensor) -> dict[str, float]:
        """Scores a q with one id, accepted with probability p(id), or p(id) / lenience. Rejection sampling accepts it
        only if p has no other id.
        """
        is_draft = proposed >= 0
        p = torch.softmax(logits, -1).gather(1, proposed.clamp(min=0).unsqueeze(1)).squeeze(1).double() * is_draft
        hits = torch.rand(p.shape, generator=self._generator, dtype=torch.float64) < p
        return {
            "overlap": float(p.sum()),
            "accepted": float(hits.sum()),
            "variance": float((p * (1 - p)).clamp(min=0).sum()),
            "drafted": float(is_draft.sum()),
        } | {f"overlap {lenience}": float((p / lenience).clamp(max=1).sum()) for lenience in LENIENCES}


def measure_alpha(setup: Setup, written: dict[str, Any], temperature: int) -> dict[str, Any]:
    """Returns by drafter and figure a number per text, and each text's category and tokens."""
    judge, texts = Judge(setup, written), written["texts"][str(temperature)]
    sums: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in DRAFTERS}
    last_s = time.perf_counter()
    for number, text in enumerate(texts):
        for name, figures in judge.judge(text, temperature).items():
            for figure, value in figures.items():
                sums[name][figure].append(round(value, 5))
        if time.perf_counter() - last_s >= PROGRESS_S:
            last_s = time.perf_counter()
            print(f"  temperature {temperature}: {number + 1} of {len(texts)} texts", flush=True)
    return {
        "categories": [text["category"] for text in texts],
        "tokens": [len(text["tokens"]) for text in texts],
        "drafters": sums,
    }
