"""What is watched while messages come: a bystander's tokens and pace, processes, logs, and at the end the caches."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc.aio

from paceline.client import AsyncClient
from paceline.rpc.channel import open_channel
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams
from paceline.v1 import model_pb2, model_pb2_grpc

PROMPT = [3, 14, 15, 92, 65]
SAMPLING = SamplingParams(max_tokens=200, temperature=0.7, seed=5, ignore_eos=True)
# Its tokens depend on prompt, parameters and seed alone.
MATCHED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH)
# A log's words for what must not happen: to a command, a call, a task, a stream that others share, or a process.
ALARMS = (
    "engine step", "a call failed", "Traceback", "never retrieved", "never awaited", "Exception in callback", "lost the ",
    "the link to", "sending to the", "Fatal Python", "Segmentation", "ended by a fault",
)  # fmt: skip
FREED_S = 20.0


class Bystander:
    """Generates the same text again and again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._is_over = False
        self.num_texts = 0
        self.longest_gap_s = 0.0
        self.faults: list[str] = []

    async def run(self, alone: list[int]) -> None:
        """Until `end` is called, once at least. `alone`: its tokens, as they are with nobody beside."""
        async with AsyncClient(self._address) as client:
            while not self.num_texts or not self._is_over:
                tokens, seen_s = [], time.monotonic()
                async for chunk in client.stream(PROMPT, SAMPLING, MATCHED):
                    now_s = time.monotonic()
                    self.longest_gap_s = max(self.longest_gap_s, now_s - seen_s)
                    seen_s = now_s
                    tokens += chunk.token_ids
                if tokens != alone:
                    self.faults.append(f"the bystander's tokens are {tokens}, alone {alone}")
                self.num_texts += 1

    def end(self) -> None:
        self._is_over = True


async def tokens_alone(address: str) -> list[int]:
    """Of the bystander, without speculation."""
    async with AsyncClient(address) as client:
        return (await client.complete(PROMPT, SAMPLING, SpeculationParams(enabled=False))).token_ids


class LogWatch:
    """What some logs say from now on."""

    def __init__(self, logs: set[Path]) -> None:
        self._starts = {log: log.stat().st_size for log in logs}

    def alarms(self) -> list[str]:
        """Alarming lines, each with those around it."""
        found = []
        for log, start in self._starts.items():
            with log.open("rb") as file:
                file.seek(start)
                lines = file.read().decode(errors="replace").splitlines()
            for at, line in enumerate(lines):
                if any(alarm in line for alarm in ALARMS):
                    found.append(f"{log.name}: " + "\n    ".join(lines[max(0, at - 2) : at + 30]))
        return found


async def blocks_in_use(address: str) -> int:
    """Once nobody uses any, or after FREED_S."""
    deadline_s = time.monotonic() + FREED_S
    async with open_channel(address) as channel:
        while True:
            model_info = await model_pb2_grpc.ModelStub(channel).Describe(
                model_pb2.DescribeModelRequest(), timeout=FREED_S
            )
            if model_info.free_blocks == model_info.total_blocks or time.monotonic() > deadline_s:
                return model_info.total_blocks - model_info.free_blocks
            await asyncio.sleep(0.05)


async def faults_at_rest(trio: Any) -> list[str]:
    """Blocks that nobody frees, and processes that have ended."""
    faults = []
    for service in (trio.draft, trio.target):
        try:
            if in_use := await blocks_in_use(service.address):
                faults.append(f"{service.module}: {in_use} blocks are in use, and nobody uses them")
        except grpc.aio.AioRpcError as error:
            faults.append(f"{service.module} does not say how many blocks are free: {error.details()}")
    for service in (trio.draft, trio.target, trio.coordinator):
        process = getattr(service, "process", None)
        if process is not None and process.poll() is not None:
            faults.append(f"{service.module} ended with status {process.returncode}")
    return faults
