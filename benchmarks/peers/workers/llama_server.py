"""llama.cpp's server, built for this processor, as a child process."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.protocol import Settings, serve

POLL_S = 0.02
ANSWER_TIMEOUT_S = 900.0
NUM_DRAFTS = 3


class LlamaServer:
    def __init__(self, settings: Settings) -> None:
        program = os.environ["LLAMA_SERVER"]
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        words = (said.stdout + said.stderr).split()
        self.version = f"llama.cpp native ({words[words.index('version:') + 1]})"
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        speculation = {
            "": [],
            "ngrams": ["--spec-type", "ngram-simple"],
            "model": [
                "--spec-type", "draft-simple", "--spec-draft-model", settings.draft_gguf_file,
                "--spec-draft-n-max", str(NUM_DRAFTS),
            ],
        }[settings.drafter]  # fmt: skip
        # The same settings as in `llama_cpp`.
        self._process = subprocess.Popen([
            program, "--model", settings.gguf_file, "--host", "127.0.0.1", "--port", str(port), "--no-ui",
            "--threads", str(settings.threads), "--threads-batch", str(settings.threads),
            "--parallel", str(settings.max_at_once), "--no-kv-unified",
            "--ctx-size", str(settings.max_length * settings.max_at_once), "--no-cache-prompt", "--cache-ram", "0",
            *speculation,
        ])  # fmt: skip
        self._temperature = settings.temperature
        self._threads = ThreadPoolExecutor(settings.max_at_once)
        while not self._is_ready():
            time.sleep(POLL_S)

    def generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        return list(self._threads.map(lambda prompt: self._complete(prompt, tokens), prompts))

    def close(self) -> None:
        self._threads.shutdown()
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {self._process.returncode}")
        try:
            with urllib.request.urlopen(f"{self._url}/health"):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def _complete(self, prompt: list[int], tokens: int) -> list[int]:
        body: dict[str, Any] = {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": self._temperature,
            "top_k": 0 if self._temperature else 1,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            return json.load(answer)["tokens"]


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


if __name__ == "__main__":
    serve(LlamaServer)
