"""A Session stream in a test's own hands: commands out, answers in, one at a time or many."""

import itertools
import queue
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from paceline.rpc.channel import CLIENT_OPTIONS
from paceline.v1 import model_pb2, model_pb2_grpc, propose_pb2
from tests.hosted import HostedService
from tests.services import Service

TIMEOUT_S = 60.0


class RawSession:
    """Talks to one model server. Not for use by several threads."""

    def __init__(self, service: Service | HostedService) -> None:
        self.channel = grpc.insecure_channel(service.address, options=CLIENT_OPTIONS)
        self.stub: Any = model_pb2_grpc.ModelStub(self.channel)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = self.stub.Session(iter(self._requests.get, None), timeout=TIMEOUT_S)
        self.session_info = next(self._call).session_info
        self._command_ids = itertools.count(1)
        self._sequence_ids = itertools.count(1)
        # By command: one, or those of rounds that the server went on with.
        self._answers: dict[int, deque[Any]] = defaultdict(deque)
        # Of the server, as it last said.
        self.engine_steps = 0
        self.load = model_pb2.Load()

    def close(self) -> None:
        self._requests.put(None)
        self.channel.close()

    def describe(self) -> model_pb2.ModelInfo:
        return self.stub.Describe(model_pb2.DescribeModelRequest())

    def send(self, sequence_id: int, *fills: Callable[[Any], None]) -> list[int]:
        """Sends one sequence's commands in one message; returns their ids."""
        return self.send_together([(sequence_id, fill) for fill in fills])

    def send_together(self, commands: list[tuple[int, Callable[[Any], None]]]) -> list[int]:
        """Sends commands for several sequences in one message; returns their ids."""
        request = model_pb2.SessionRequest()
        for sequence_id, fill in commands:
            fill(request.commands.add(command_id=next(self._command_ids), sequence_id=sequence_id))
        self._requests.put(request)
        return [command.command_id for command in request.commands]

    def answer(self, command_id: int) -> Any:
        """Waits for the next answer to a command."""
        while not self._answers[command_id]:
            self.receive()
        return self._answers[command_id].popleft()

    def receive(self) -> None:
        """Waits for the next message, with or without answers."""
        response = next(self._call)
        self.engine_steps = response.engine_steps
        if response.HasField("load"):
            self.load = response.load
        for answer in response.answers:
            self._answers[answer.command_id].append(answer)

    def need(self, num_generations: int, reserved_tokens: int) -> None:
        """Says what this client's generations need."""
        reservation = model_pb2.Reservation(num_generations=num_generations, reserved_tokens=reserved_tokens)
        self._requests.put(model_pb2.SessionRequest(reservation=reservation))

    def share(self, target_vocab_size: int, draft_token_ids: Iterable[int], target_token_ids: Iterable[int]) -> None:
        """Says what the target's vocabulary has in common with the draft model's."""
        vocabulary = propose_pb2.SharedVocabulary(
            target_vocab_size=target_vocab_size, draft_token_ids=draft_token_ids, target_token_ids=target_token_ids
        )
        self._requests.put(model_pb2.SessionRequest(vocabulary=vocabulary))

    def ask(self, sequence_id: int, fill: Callable[[Any], None]) -> Any:
        """Sends one command and waits."""
        return self.answer(self.send(sequence_id, fill)[0])

    def next_sequence_id(self) -> int:
        return next(self._sequence_ids)

    def open(self, temperature: float = 1.0, seed: int = 1) -> int:
        """Opens a sequence; returns its id."""
        sequence_id = self.next_sequence_id()
        answer = self.ask(sequence_id, opening(temperature, seed))
        assert answer.WhichOneof("answer") == "open_ack", answer
        return sequence_id

    def responses(self) -> Iterator[Any]:
        return self._call


def opening(temperature: float = 1.0, seed: int = 1) -> Callable[[Any], None]:
    def fill(command: Any) -> None:
        command.open.sampling.temperature = temperature
        command.open.sampling.seed = seed
        command.open.num_prompt_tokens = 1

    return fill


def verify(position: int, tail: list[int], drafts: list[int] = (), support: list[int] = (), rule: int = 2) -> Any:
    """A Verify under `rejection` (rule 2): every draft is asked about on the same support, itself included."""

    def fill(command: Any) -> None:
        command.verify.position = position
        command.verify.tail_tokens.extend(tail)
        command.verify.draft_tokens.extend(drafts)
        command.verify.rule = rule
        for draft in drafts if rule == 2 else ():
            ids = sorted({draft, *support})
            command.verify.support_token_ids.extend(ids)
            command.verify.support_sizes.append(len(ids))

    return fill


def propose(position: int, tail: list[int], num_draft_tokens: int, draft_mode: int = 1) -> Any:
    def fill(command: Any) -> None:
        command.propose.position = position
        command.propose.tail_tokens.extend(tail)
        command.propose.num_draft_tokens = num_draft_tokens
        command.propose.draft_mode = draft_mode

    return fill


def truncate(length: int) -> Any:
    def fill(command: Any) -> None:
        command.truncate.SetInParent()
        command.truncate.length = length

    return fill


def release(command: Any) -> None:
    command.release.SetInParent()


def release_after(position: int, tail: list[int]) -> Any:
    """Reads the tail first."""

    def fill(command: Any) -> None:
        command.release.position = position
        command.release.tail_tokens.extend(tail)

    return fill


def substance_of(answer: Any) -> Any:
    """A verify_result or proposal without what the server's state and speed say in it."""
    kind = answer.WhichOneof("answer")
    assert kind in ("verify_result", "proposal"), answer
    substance = type(getattr(answer, kind))()
    substance.CopyFrom(getattr(answer, kind))
    substance.ClearField("queued_us")
    substance.ClearField("compute_us")
    substance.ClearField("cached_tokens")
    if kind == "verify_result":
        substance.ClearField("drafting_us")
    return substance
