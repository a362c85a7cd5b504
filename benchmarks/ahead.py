"""Drafting ahead against drafting in turns with the target, at known times and acceptance.

python -m benchmarks.ahead [--tokens 300] [--turns 3]

The model servers are fakes that sleep: the target V for a forward pass, the draft server a step for each of k drafts, or for all
of them. A draft is right with probability alpha, by its position alone, so all runs have the same rounds. The coordinators are
real; one is told that both servers share a device, and never drafts ahead, another that others keep the draft server busy. They
take turns, and medians are told, with the speed-up that follows from

    (V + r + D) / (V + r + (1 - h) D + h max(0, D' - V))        h = alpha^(k + 1)

V + r is a round without drafts, and D what a round in turns takes longer, both as measured; D' is D for k + 1 drafts.
"""

import argparse
import asyncio
import multiprocessing
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.coordinator import VOCAB_SIZE, InstantServer, serve_until_signal
from paceline.client import AsyncClient
from paceline.rpc.server import run
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from paceline.v1 import model_pb2
from tests.services import running, start_service

# The draft server's device, and how busy others keep it.
WAYS = {"in turns": ("one", 0.0), "ahead": ("another", 0.0), "busy": ("another", 1.0)}
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Case:
    verify_s: float
    step_s: float
    alpha: float
    num_drafts: int
    in_parallel: bool = False

    def draft_s(self, num_drafts: int) -> float:
        return self.step_s * (1 if self.in_parallel else num_drafts)

    def speed_up(self, plain_s: float, in_turns_s: float) -> float:
        """`plain_s`, `in_turns_s`: of a round."""
        chance, draft_s = self.alpha ** (self.num_drafts + 1), in_turns_s - plain_s
        ahead_s = draft_s * self.draft_s(self.num_drafts + 1) / self.draft_s(self.num_drafts)
        late_s = max(0.0, ahead_s - self.verify_s)
        return in_turns_s / (in_turns_s - chance * (draft_s - late_s))

    def __str__(self) -> str:
        step = f"one forward pass of {self.step_s * 1e3:g}" if self.in_parallel else f"step {self.step_s * 1e3:g}"
        return f"V {self.verify_s * 1e3:g} ms, {step} ms, alpha {self.alpha}, k {self.num_drafts}"


CASES = [
    Case(0.020, 0.004, 0.8, 4),
    Case(0.020, 0.004, 0.8, 2),
    Case(0.020, 0.008, 0.8, 2),
    Case(0.020, 0.004, 0.9, 4),
    Case(0.020, 0.008, 0.8, 4, in_parallel=True),
]


def token_at(position: int) -> int:
    return 33 + position % 64


class SleepingServer(InstantServer):
    """Answers after as long as a model would take. A Truncate to its start drops a draft after the step that runs."""

    def __init__(self, case: Case, device_id: str, utilization: float, *parts: Any) -> None:
        super().__init__(*parts)
        self._case, self._device_id, self._utilization = case, device_id, utilization
        # When the step that runs ends.
        self._free_s = 0.0

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        responses: asyncio.Queue[Any] = asyncio.Queue()
        responses.put_nowait(
            model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake", instance_id="fake"))
        )
        tasks = [asyncio.create_task(each) for each in (self._read(requests, responses), self._beat(responses))]
        try:
            while True:
                yield await responses.get()
        finally:
            for task in tasks:
                task.cancel()

    async def _beat(self, responses: asyncio.Queue[Any]) -> None:
        while True:
            responses.put_nowait(model_pb2.SessionResponse(load=model_pb2.Load(utilization=self._utilization)))
            await asyncio.sleep(1.0)

    async def _read(self, requests: AsyncIterator[Any], responses: asyncio.Queue[Any]) -> None:
        start, job = 0, asyncio.create_task(asyncio.sleep(0))
        verifying: set[asyncio.Task[None]] = set()
        async for request in requests:
            for command in request.commands:
                match command.WhichOneof("command"):
                    case "propose":
                        start = command.propose.position
                        job = asyncio.create_task(self._propose(command, responses))
                    case "verify":
                        task = asyncio.create_task(self._verify(command, responses))
                        verifying.add(task)
                        task.add_done_callback(verifying.discard)
                    case "truncate" if command.truncate.length <= start:
                        job.cancel()
                    case "release":
                        job.cancel()

    async def _propose(self, command: Any, responses: asyncio.Queue[Any]) -> None:
        propose, case = command.propose, self._case
        begin, num_drafts = propose.position + len(propose.tail_tokens), propose.num_draft_tokens
        now_s = asyncio.get_running_loop().time
        ends_s = now_s()
        for _ in range(1 if case.in_parallel else num_drafts):
            # A step that runs goes on if its job is dropped.
            ends_s = self._free_s = max(ends_s, self._free_s) + case.step_s
            await asyncio.sleep(ends_s - now_s())
        response = model_pb2.SessionResponse()
        proposal = response.answers.add(command_id=command.command_id).proposal
        for position in range(begin, begin + num_drafts):
            is_right = random.Random(position).random() < case.alpha
            proposal.tokens.append(token_at(position) if is_right else 32)
        proposal.num_fed_drafts = 0 if case.in_parallel else num_drafts - 1
        proposal.compute_us = int(case.draft_s(num_drafts) * 1e6)
        responses.put_nowait(response)

    async def _verify(self, command: Any, responses: asyncio.Queue[Any]) -> None:
        await asyncio.sleep(self._case.verify_s)
        verify, response = command.verify, model_pb2.SessionResponse()
        begin = verify.position + len(verify.tail_tokens)
        verify_result = response.answers.add(command_id=command.command_id).verify_result
        verify_result.tokens.extend(map(token_at, range(begin, begin + len(verify.draft_tokens) + 1)))
        verify_result.compute_us = int(self._case.verify_s * 1e6)
        responses.put_nowait(response)

    async def Describe(self, request: Any, context: Any) -> Any:
        model_info = await super().Describe(request, context)
        is_draft = self._role == "draft"
        microseconds = (self._case.step_s if is_draft else self._case.verify_s) * 1e6
        model_info.forward_times.extend(
            model_pb2.ForwardTime(num_tokens=size, microseconds=microseconds) for size in (1, 32)
        )
        model_info.device_ids.append(self._device_id)
        if is_draft and self._case.in_parallel:
            model_info.num_mask_tokens = 15
        return model_info


def serve_fakes(folder: str, case: Case, files: dict[str, bytes]) -> None:
    """Serves a target and a draft for each way until SIGTERM."""

    def fake(role: str, device_id: str, utilization: float = 0.0) -> SleepingServer:
        return SleepingServer(case, device_id, utilization, role, files, multiprocessing.Value("q", 0))

    fakes: dict[str, InstantServer] = {"target": fake("target", "one")}
    fakes |= {way: fake("draft", *server) for way, server in WAYS.items()}
    run(lambda: serve_until_signal(folder, fakes))


async def measure(address: str, num_drafts: int, tokens: int) -> tuple[float, float, list[int]]:
    """Returns tokens a second, seconds a round, and the tokens."""
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=num_drafts)
    async with AsyncClient(address) as client:
        done = await client.complete([1, 2, 3], SamplingParams(max_tokens=tokens, ignore_eos=True), speculation)
    timing, rounds = done.finish.timing, done.finish.speculation.rounds
    seconds = (timing.total_ms - timing.ttft_ms) / 1e3
    return (tokens - 1) / seconds, seconds / rounds, done.token_ids


async def compare(case: Case, files: dict[str, bytes], tokens: int, turns: int) -> None:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder, ExitStack() as stack:
        fakes = multiprocessing.get_context("spawn").Process(target=serve_fakes, args=(folder, case, files))
        fakes.start()
        stack.callback(fakes.join)
        stack.callback(fakes.terminate)
        coordinators = {}
        for way in WAYS:
            flags = ("--draft", f"unix:{folder}/{way}.sock", "--target", f"unix:{folder}/target.sock")
            address = f"unix:{folder}/coordinator {way}.sock"
            coordinators[way] = start_service("coordinator", Path(folder), *flags, address=address)
            stack.enter_context(running(coordinators[way]))
            await measure(address, case.num_drafts, tokens=50)
        found: dict[str, list[tuple[float, float, list[int]]]] = {way: [] for way in (PLAIN, *WAYS)}
        for _ in range(turns):
            found[PLAIN].append(await measure(coordinators["in turns"].address, 0, tokens))
            for way, coordinator in coordinators.items():
                found[way].append(await measure(coordinator.address, case.num_drafts, tokens))
        _, *speeds = (median(each[0] for each in of_way) for of_way in found.values())
        plain_s, in_turns_s, *_ = (median(each[1] for each in of_way) for of_way in found.values())
        same = len({tuple(each[2]) for of_way in found.values() for each in of_way}) == 1
        print(
            f"{case}: {speeds[0]:.1f} -> {speeds[1]:.1f} tokens/s, {speeds[1] / speeds[0]:.3f} x, by the formula "
            f"{case.speed_up(plain_s, in_turns_s):.3f} x (r {(plain_s - case.verify_s) * 1e3:.1f} ms, "
            f"D {(in_turns_s - plain_s) * 1e3:.1f} ms), {speeds[2] / speeds[0]:.3f} x if busy, "
            f"{'the same' if same else 'OTHER'} tokens",
            flush=True,
        )


async def main() -> None:
    from paceline.engine.models.dummy import dummy_tokenizer_files

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    files = dummy_tokenizer_files(VOCAB_SIZE)
    for case in CASES:
        await compare(case, files, arguments.tokens, arguments.turns)


if __name__ == "__main__":
    asyncio.run(main())
