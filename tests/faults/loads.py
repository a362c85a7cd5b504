"""What clients ask for while a fault falls: generations over gRPC or HTTP, and what each must give."""

import asyncio
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, DraftMode, Rule, SpeculationParams

OFF = SpeculationParams(enabled=False)
# For clients over gRPC, and the same in a body; None: what nobody asks for. The first always has the draft model draft.
DRAFTING: list[tuple[SpeculationParams | None, Any]] = [
    (
        SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
        {"drafter": "model", "num_speculative_tokens": 4},
    ),
    (None, None),
    (
        SpeculationParams(
            drafter=Drafter.MODEL, num_speculative_tokens=3, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED
        ),
        {"drafter": "model", "num_speculative_tokens": 3, "rule": "match"},
    ),
    (
        SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=4),
        {"drafter": "head", "num_speculative_tokens": 4},
    ),
    (
        SpeculationParams(drafter=Drafter.HYBRID, num_speculative_tokens=4),
        {"drafter": "hybrid", "num_speculative_tokens": 4},
    ),
    (
        SpeculationParams(drafter=Drafter.SUFFIX, num_speculative_tokens=8),
        {"drafter": "suffix", "num_speculative_tokens": 8},
    ),
    (SpeculationParams(drafter=Drafter.MODEL), {"drafter": "model", "num_speculative_tokens": "adaptive"}),
    (
        SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
        {"drafter": "ngram", "num_speculative_tokens": 4},
    ),
    # The target goes on by itself.
    (OFF, {"enabled": False}),
]
VOCAB_SIZE = 32
# Between two trials of a client whose call broke.
PAUSE_S = 0.1
# Nothing answers, or the connection ended in the middle.
BROKEN = (httpx2.ConnectError, httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)


@dataclass(frozen=True, slots=True)
class Asked:
    """One generation. Even numbers are greedy, odd ones drawn from a seed; each has a prompt of its own."""

    number: int
    prompt_tokens: int
    max_tokens: int

    @property
    def prompt(self) -> list[int]:
        return [(index * index + 7 * self.number + index) % (VOCAB_SIZE - 1) + 1 for index in range(self.prompt_tokens)]

    @property
    def sampling(self) -> SamplingParams:
        temperature = 0.8 * (self.number % 2)
        return SamplingParams(self.max_tokens, temperature=temperature, seed=self.number, ignore_eos=True)

    @property
    def drafting(self) -> tuple[SpeculationParams | None, Any]:
        """So that each way of drafting is asked for greedily and from seeds."""
        return DRAFTING[(self.number // 2) % len(DRAFTING)]

    @property
    def body(self) -> dict[str, Any]:
        speculation = self.drafting[1]
        return {
            "prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": self.sampling.temperature,
            "seed": self.number, "ignore_eos": True, "stream": True,
            **({} if speculation is None else {"speculation": speculation}),
        }  # fmt: skip


def words_of(text: str) -> list[str]:
    """A tiny model's tokens are words, t0 and so on: none is lost or doubled unseen. Of other texts each character is one."""
    return re.findall(r" ?t\d+|.", text, re.DOTALL)


class Undisturbed:
    """What generations give without speculation and without faults: asked for once."""

    def __init__(self) -> None:
        self._words: dict[Asked, list[str]] = {}

    async def find(self, client: AsyncClient, asked: list[Asked]) -> None:
        async def complete(each: Asked) -> None:
            completion = await client.complete(each.prompt, each.sampling, OFF, cache_salt="undisturbed")
            self._words[each] = words_of(completion.text)

        await asyncio.gather(*(complete(each) for each in asked if each not in self._words))

    def of(self, asked: Asked) -> list[str]:
        return self._words[asked]


class Follower(ABC):
    """A client that follows one generation."""

    def __init__(self, asked: Asked, salt: str) -> None:
        """`salt`: requests with different ones share no cached prompts."""
        self.asked = asked
        self._salt = salt
        self._text = ""

    @property
    def words(self) -> list[str]:
        """So far."""
        return words_of(self._text)

    @abstractmethod
    async def run(self) -> None:
        """Returns when the generation is over, and raises what ends it early."""


class GrpcFollower(Follower):
    """Of a coordinator."""

    def __init__(self, client: AsyncClient, asked: Asked, salt: str) -> None:
        super().__init__(asked, salt)
        self._client = client

    async def run(self) -> None:
        asked = self.asked
        finish, speculation = None, asked.drafting[0]
        async for chunk in self._client.stream(asked.prompt, asked.sampling, speculation, cache_salt=self._salt):
            self._text += chunk.text
            finish = chunk.finish
        assert finish is not None, "a stream without an end"
        assert finish.completion_tokens == asked.max_tokens


class HttpFollower(Follower):
    """Of a gateway. A call that breaks, as when the gateway dies, is made again: what came of it must come again."""

    def __init__(self, http: httpx2.AsyncClient, asked: Asked, salt: str) -> None:
        super().__init__(asked, salt)
        self._http = http
        # What broken calls gave.
        self.broken: list[list[str]] = []

    async def run(self) -> None:
        while True:
            try:
                await self._call()
                break
            except BROKEN:
                self.broken.append(self.words)
                self._text = ""
                await asyncio.sleep(PAUSE_S)
        for each in self.broken:
            assert each == self.words[: len(each)], "a broken call gave other tokens"

    async def _call(self) -> None:
        body = {**self.asked.body, "cache_salt": self._salt}
        is_whole = False
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    is_whole = True
                # Comments tell that the answer is waited for.
                elif line.startswith("data: "):
                    event = orjson.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    self._text += "".join(choice["text"] for choice in event["choices"])
        if not is_whole:
            raise httpx2.RemoteProtocolError("the stream ended early")
