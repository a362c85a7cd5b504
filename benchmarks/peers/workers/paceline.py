"""Paceline's three services and a client."""

import asyncio
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.protocol import Settings, serve
from paceline.cli.services import Services
from paceline.cli.stack import make_stack
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, SpeculationParams

MODES = {
    "plain": SpeculationParams(enabled=False),
    "model": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
    "adaptive": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=Bounds()),
    "hybrid": SpeculationParams(drafter=Drafter.HYBRID, num_speculative_tokens=Bounds()),
    "ngrams": SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
}


class Paceline:
    def __init__(self, settings: Settings) -> None:
        self.version = f"paceline {version('paceline')}"
        self._runner = asyncio.Runner()
        self._temperature = settings.temperature
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-peers-")
        self._runner.run(self._start(settings))

    def generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        return self._runner.run(self._generate(prompts, tokens, mode))

    def close(self) -> None:
        self._runner.run(self._stop())
        self._runner.close()
        self._folder.cleanup()

    async def _start(self, settings: Settings) -> None:
        both = {"threads": settings.threads}
        listen = f"unix:{Path(self._folder.name) / 'coordinator.sock'}"
        deployment = make_stack(
            {"model": settings.target, **both}, {"model": settings.draft, **both}, {"listen": listen}
        )
        self._services = await Services(deployment, lambda name, line: None).__aenter__()
        self._client = AsyncClient(self._services.address)

    async def _generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=self._temperature, seed=1)
        # A salt for each mode: drafts may come from its answers to earlier prompts, not from another mode's to this one.
        asked = (self._client.complete(ids, params, MODES[mode], cache_salt=mode) for ids in prompts)
        completions = await asyncio.gather(*asked)
        return [completion.token_ids for completion in completions]

    async def _stop(self) -> None:
        await self._client.close()
        await self._services.stop()


if __name__ == "__main__":
    serve(Paceline)
