"""The coordinator's own cost: CPU time and messages per sequence and round.

python -m benchmarks.coordinator [--at-once 1,16,64] [--tokens 400] [--targets 1,4] [--turns 3]

The model servers are fakes that answer at once, since forwards would hide the coordinator's cost: every draft is
accepted, a round is a proposal of 4 and a verify result of 5 tokens. The coordinators, one for each number of targets, and their
streams are real; they take turns, and medians are told.
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from paceline.client import AsyncClient
from paceline.rpc.model_messages import PROTOCOL_VERSION
from paceline.rpc.server import Server, run, wait_for_signal
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from paceline.v1 import model_pb2
from tests.services import Service, running, start_service

VOCAB_SIZE = 512
NUM_DRAFT_TOKENS = 4
TOKEN = 97


class InstantServer:
    """Answers every command with tokens of one kind; counts messages."""

    def __init__(self, role: str, files: dict[str, bytes], messages: Any) -> None:
        self._role = role
        self._files = files
        self._messages = messages

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        yield model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake", instance_id="fake"))
        async for request in requests:
            response = model_pb2.SessionResponse()
            self._messages.value += 1
            for command in request.commands:
                self._answer(command, response)
            if response.answers:
                yield response

    def _answer(self, command: Any, response: Any) -> None:
        kind = command.WhichOneof("command")
        if kind in ("truncate", "release"):
            return
        answer = response.answers.add(command_id=command.command_id)
        if kind == "open":
            answer.open_ack.SetInParent()
        elif kind == "propose":
            answer.proposal.tokens.extend([TOKEN] * command.propose.num_draft_tokens)
        else:
            answer.verify_result.tokens.extend([TOKEN] * (len(command.verify.draft_tokens) + 1))

    async def Describe(self, request: Any, context: Any) -> Any:
        return model_pb2.ModelInfo(
            name="fake", dtype="none", vocab_size=VOCAB_SIZE, max_model_len=8192, protocol_version=PROTOCOL_VERSION,
            tokenizer_fingerprint="fake", instance_id="fake", role=self._role, block_size=64, total_blocks=1 << 20,
        )  # fmt: skip

    async def Tokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for name, data in self._files.items():
            yield model_pb2.TokenizerChunk(file_name=name, data=data)

    async def Truncate(self, request: Any, context: Any) -> Any:
        return model_pb2.TruncateResponse()

    async def Release(self, request: Any, context: Any) -> Any:
        return model_pb2.ReleaseResponse()


def serve_fakes(folder: str, num_targets: int, files: dict[str, bytes], messages: Any) -> None:
    """Serves a draft and the targets until SIGTERM, in a process that the coordinator's figures exclude."""
    fakes = {"draft": InstantServer("draft", files, messages)}
    for number in range(num_targets):
        fakes[f"target-{number}"] = InstantServer("target", files, messages)
    run(lambda: serve_until_signal(folder, fakes))


async def serve_until_signal(folder: str, fakes: Mapping[str, InstantServer]) -> None:
    servers = []
    for name, fake in fakes.items():
        server = Server(f"unix:{folder}/{name}.sock")
        server.add_service(model_pb2.DESCRIPTOR.services_by_name["Model"], fake)
        await server.start()
        servers.append(server)
    await wait_for_signal()
    for server in servers:
        await server.stop(0)


def cpu_s(pid: int) -> float:
    """Returns user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(address: str, pid: int, messages: Any, at_once: int, tokens: int) -> tuple[float, float]:
    """Returns microseconds and messages a sequence-round."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=NUM_DRAFT_TOKENS)
    async with AsyncClient(address) as client:
        await client.complete([1, 2, 3], SamplingParams(max_tokens=20), speculation)
        before_s, before = cpu_s(pid), messages.value
        done = await asyncio.gather(*(client.complete([1, 2, 3], params, speculation) for _ in range(at_once)))
    rounds = sum(each.finish.speculation.rounds for each in done)
    return (cpu_s(pid) - before_s) / rounds * 1e6, (messages.value - before) / rounds


async def main() -> None:
    from paceline.engine.models.dummy import dummy_tokenizer_files

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--targets", default="1")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="paceline-bench-")
    counts = [int(each) for each in arguments.targets.split(",")]
    spawn = multiprocessing.get_context("spawn")
    messages = spawn.Value("q", 0, lock=False)
    files = dummy_tokenizer_files(VOCAB_SIZE)
    fakes = spawn.Process(target=serve_fakes, args=(folder, max(counts), files, messages))
    fakes.start()
    try:
        with ExitStack() as stack:
            coordinators: dict[int, Service] = {}
            for count in counts:
                targets = ",".join(f"unix:{folder}/target-{number}.sock" for number in range(count))
                flags = ("--draft", f"unix:{folder}/draft.sock", "--target", targets)
                address = f"unix:{folder}/coordinator-{count}.sock"
                coordinators[count] = start_service("coordinator", Path(folder), *flags, address=address)
                stack.enter_context(running(coordinators[count]))
            for at_once in (int(each) for each in arguments.at_once.split(",")):
                found: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
                for _ in range(arguments.turns):
                    for count, coordinator in coordinators.items():
                        found[count].append(
                            await measure(
                                coordinator.address, coordinator.process.pid, messages, at_once, arguments.tokens
                            )
                        )
                for count, turns in found.items():
                    each_us, num_messages = (median(values) for values in zip(*turns, strict=True))
                    print(
                        f"{at_once:3d} at once, {count} targets: {each_us:6.0f} us CPU and {num_messages:5.2f} messages a sequence-round",
                        flush=True,
                    )
    finally:
        fakes.terminate()
        fakes.join()


if __name__ == "__main__":
    asyncio.run(main())
