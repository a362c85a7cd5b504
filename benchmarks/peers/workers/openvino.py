"""OpenVINO GenAI in this process: continuous batching of weights that `make peers` exported, or one prompt at a time from
a GGUF file."""

from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.protocol import Settings, serve

CACHE_GIB = 2
# As Paceline's n-grams: four tokens after a match of three or fewer.
NUM_DRAFTS, LONGEST_MATCH = 4, 3


class OpenVino:
    def __init__(self, settings: Settings) -> None:
        self.version = f"openvino-genai {openvino_genai.get_version()}"
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = settings.max_at_once
        # No prompt is ever seen twice to be read once.
        scheduler.enable_prefix_caching = False
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": settings.threads,
            "INFERENCE_PRECISION_HINT": "bf16",
            "KV_CACHE_PRECISION": "bf16",
        }
        self._ngrams, self._temperature = settings.drafter == "ngrams", settings.temperature
        # Only this class reads such a file; as a draft model it reads none.
        self._alone = None
        if settings.weights == "gguf":
            self._alone = openvino_genai.LLMPipeline(
                settings.gguf_file, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=settings.threads
            )
            return
        if self._ngrams:
            properties["prompt_lookup"] = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings.openvino_folders[settings.weights], scheduler, "CPU", properties
        )

    def generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = tokens, True
        config.do_sample = self._temperature > 0
        if self._temperature > 0:
            config.temperature, config.top_p, config.top_k = self._temperature, 1.0, 0
        if self._ngrams:
            config.num_assistant_tokens, config.max_ngram_size = NUM_DRAFTS, LONGEST_MATCH
        inputs = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        if self._alone is not None:
            return [list(self._alone.generate(each, config).tokens[0]) for each in inputs]
        results = self._pipeline.generate(inputs, [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(OpenVino)
