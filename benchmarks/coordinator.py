"""The coordinator's own cost: CPU time and messages per sequence and round.

python -m benchmarks.coordinator [--at-once 1,16,64] [--tokens 400]

The model servers are fakes that answer at once, since forwards would hide the coordinator's cost: every draft is
accepted, a round is a proposal of 4 and a verdict of 5 tokens. The coordinator, its processes and its streams are real.
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from paceline.client import AsyncClient
from paceline.rpc.server import Server, run, wait_for_signal
from paceline.sampling import SamplingParams
from paceline.speculation import Drafter, SpeculationParams
from paceline.v1 import draft_pb2, model_pb2, target_pb2
from tests.services import running, start_service

VOCAB_SIZE = 512
NUM_DRAFT_TOKENS = 4
TOKEN = 97


class InstantServer:
    """Answers every command with tokens of one kind; counts messages."""

    def __init__(self, module: Any, service: str, files: dict[str, bytes], messages: Any) -> None:
        self._response_class = getattr(module, f"{service}Response")
        self._files = files
        self._messages = messages

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        yield self._response_class(hello=model_pb2.Hello(session_id="fake", instance_id="fake"))
        async for request in requests:
            response = self._response_class()
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
            answer.opened.SetInParent()
        elif kind == "propose":
            answer.proposal.tokens.extend([TOKEN] * command.propose.num_draft_tokens)
        else:
            answer.verdict.tokens.extend([TOKEN] * (len(command.verify.draft_tokens) + 1))

    async def Describe(self, request: Any, context: Any) -> Any:
        return model_pb2.ModelCard(
            name="fake", dtype="none", vocab_size=VOCAB_SIZE, max_model_len=8192, protocol_version=1,
            tokenizer_fingerprint="fake", instance_id="fake", block_size=64, total_blocks=1 << 20,
        )  # fmt: skip

    async def Tokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for name, data in self._files.items():
            yield target_pb2.TokenizerPiece(file_name=name, data=data)

    async def Truncate(self, request: Any, context: Any) -> Any:
        return model_pb2.TruncateResponse()

    async def Release(self, request: Any, context: Any) -> Any:
        return model_pb2.ReleaseResponse()


def serve_fakes(folder: str, files: dict[str, bytes], messages: Any) -> None:
    """Serves both fakes until SIGTERM, in a process that the coordinator's figures exclude."""

    async def serve() -> None:
        servers = []
        for module, service in ((draft_pb2, "Draft"), (target_pb2, "Target")):
            server = Server(f"unix:{folder}/{service.lower()}.sock")
            servicer = InstantServer(module, service, files, messages)
            server.add_service(module.DESCRIPTOR.services_by_name[service], servicer)
            await server.start()
            servers.append(server)
        await wait_for_signal()
        for server in servers:
            await server.stop(0)

    run(serve)


def cpu_s(pid: int) -> float:
    """Returns user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(address: str, pid: int, messages: Any, at_once: int, tokens: int) -> str:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=NUM_DRAFT_TOKENS)
    async with AsyncClient(address) as client:
        await client.complete([1, 2, 3], SamplingParams(max_tokens=20), speculation)
        before_s, before = cpu_s(pid), messages.value
        done = await asyncio.gather(*(client.complete([1, 2, 3], params, speculation) for _ in range(at_once)))
    rounds = sum(each.finish.speculation.rounds for each in done)
    each_us = (cpu_s(pid) - before_s) / rounds * 1e6
    return f"{at_once:3d} at once: {each_us:6.0f} us CPU and {(messages.value - before) / rounds:5.2f} messages a sequence-round"


async def main() -> None:
    from paceline.engine.models.dummy import dummy_tokenizer_files

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="paceline-bench-")
    spawn = multiprocessing.get_context("spawn")
    messages = spawn.Value("q", 0, lock=False)
    fakes = spawn.Process(target=serve_fakes, args=(folder, dummy_tokenizer_files(VOCAB_SIZE), messages))
    fakes.start()
    try:
        addresses = ("--draft", f"unix:{folder}/draft.sock", "--target", f"unix:{folder}/target.sock")
        coordinator = start_service("coordinator", Path(folder), *addresses)
        with running(coordinator):
            for at_once in (int(each) for each in arguments.at_once.split(",")):
                pid = coordinator.process.pid
                print(await measure(coordinator.address, pid, messages, at_once, arguments.tokens), flush=True)
    finally:
        fakes.terminate()
        fakes.join()


if __name__ == "__main__":
    asyncio.run(main())
