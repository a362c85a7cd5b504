"""llama.cpp's server in this process, through xllamacpp's bindings."""

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import xllamacpp

from benchmarks.peers.protocol import Settings, serve

# The best first. A wheel may use less than this processor has.
INSTRUCTION_SETS = ("AMX_INT8", "AVX512_VNNI", "AVX512", "AVX2")


class LlamaCpp:
    def __init__(self, settings: Settings) -> None:
        has = xllamacpp.get_system_info()
        best = next((name for name in INSTRUCTION_SETS if f"{name} = 1" in has), "no AVX2")
        self.version = f"llama.cpp (xllamacpp {version('xllamacpp')}, {best})"
        params = xllamacpp.CommonParams()
        params.model.path = settings.gguf_file
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
        params.n_parallel = settings.max_at_once
        # A cache for each sequence: in a common one each would attend over the others' rows as well.
        params.kv_unified = False
        params.n_ctx = settings.max_length * settings.max_at_once
        # No prompt is ever seen twice to be read once.
        params.cache_prompt = False
        params.cache_ram_mib = 0
        params.port = 0
        if settings.drafter:
            params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        self._temperature = settings.temperature
        self._server = xllamacpp.Server(params)
        self._threads = ThreadPoolExecutor(settings.max_at_once)

    def generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        return list(self._threads.map(lambda prompt: self._complete(prompt, tokens), prompts))

    def close(self) -> None:
        self._threads.shutdown()

    def _complete(self, prompt: list[int], tokens: int) -> list[int]:
        request = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": self._temperature,
            "top_k": 0 if self._temperature else 1,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": 1,
            # Bans these tokens; other engines sample them and go on.
            "ignore_eos": True,
            "cache_prompt": False,
            # Token ids are in the verbose part of the answer alone.
            "verbose": True,
            "return_tokens": True,
        }
        answer = self._server.handle_completions(request)
        if "__verbose" not in answer:
            raise RuntimeError(f"llama.cpp answered {answer}")
        return answer["__verbose"]["tokens"]


if __name__ == "__main__":
    serve(LlamaCpp)
