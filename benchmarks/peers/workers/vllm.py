"""vLLM's CPU build, eager, with its engine in this process."""

from typing import Any

import vllm

from benchmarks.peers.protocol import Settings, serve

# Four tokens after the longest match of three, two or one, as Paceline's n-grams.
NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


class Vllm:
    def __init__(self, settings: Settings) -> None:
        self.version = f"vllm {vllm.__version__}"
        self._temperature = settings.temperature
        options: dict[str, Any] = {"speculative_config": NGRAMS} if settings.drafter else {}
        self._llm = vllm.LLM(
            settings.model_folder, dtype="bfloat16", enforce_eager=True, max_model_len=settings.max_length,
            max_num_seqs=settings.max_at_once, enable_prefix_caching=False, **options,
        )  # fmt: skip

    def generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        params = vllm.SamplingParams(temperature=self._temperature, max_tokens=tokens, ignore_eos=True)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(requests, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(Vllm)
