"""Services under test, and what comes back from them: statuses, failures, and what must never come."""

import asyncio
import contextlib
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from paceline.rpc.channel import CLIENT_OPTIONS, MAX_COMMANDS
from paceline.v1 import generation_pb2, model_pb2
from tests.fuzz.calls import Call, calls
from tests.fuzz.mutations import wrapped
from tests.fuzz.sessions import Session, visits
from tests.fuzz.values import VOCAB_SIZE

# Generous: a machine may be busy with much else.
DEADLINE_S = 60.0
# The server's fault, or none that answers. Clients' faults have other codes.
FORBIDDEN = {
    grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DATA_LOSS,
}  # fmt: skip
# How gRPC says that an answer, or its status, was more than it carries.
TOO_LARGE = ("CLIENT: Received message larger", "SERVER: Sent message larger", "received metadata size")
# What the Python client says when a stream ends while it writes, whatever the server said.
ENDED_WHILE_WRITTEN = "Internal error from Core"
CODES = {code.value[0]: code for code in grpc.StatusCode}
# Commands that are answered only when they fail.
SILENT = ("suggest", "truncate", "release")


@dataclass(slots=True)
class Seen:
    """What came back so far."""

    num_messages: int = 0
    # By method and code; answers that are failures under "Session: answers".
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def count(self, method: str, name: str, times: int = 1) -> None:
        self.statuses[method.rpartition("/")[2], name] += times


class FuzzedService:
    """One service's. `send` never raises for what the service does: it notes it."""

    def __init__(self, name: str, address: str, cases: st.SearchStrategy[Any]) -> None:
        self.name = name
        self.cases = cases
        self.seen = Seen()
        # Large messages go one at a time: they try a service by their size, and not a machine by their number.
        self._large_one = asyncio.Lock()
        # A client that sends what a server does not take.
        options = [*CLIENT_OPTIONS, ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(address, options=options)

    async def close(self) -> None:
        await self._channel.close()

    async def send(self, case: Any) -> None:
        self.seen.num_messages += len(case)
        async with self._large_one if case.is_large else contextlib.nullcontext():
            faults = await (self._visit(case) if isinstance(case, Session) else self._call(case))
        if faults:
            self.seen.violations.append(f"{'; '.join(faults)}\n  {case}")

    async def _call(self, call: Call) -> list[str]:
        """Returns what was wrong."""
        # A unary answer is a stream of one.
        running = self._channel.unary_stream(call.method)(call.data, timeout=DEADLINE_S)
        answers = []
        try:
            while (answer := await running.read()) is not grpc.aio.EOF:
                answers.append(answer)
                if call.is_left:
                    running.cancel()
                    self.seen.count(call.method, "(left by the caller)")
                    return []
        except grpc.aio.AioRpcError as error:
            return self._note(call.method, error)
        self.seen.count(call.method, "OK")
        return wrong_in_calls(call.method, answers)

    def _note(self, method: str, error: grpc.aio.AioRpcError) -> list[str]:
        code, details = error.code(), error.details() or ""
        if details == ENDED_WHILE_WRITTEN:
            self.seen.count(method, "(ended while it was written)")
            return []
        self.seen.count(method, code.name)
        is_wrong = code in FORBIDDEN or any(words in details for words in TOO_LARGE)
        return [f"{code.name}: {details}"] if is_wrong else []

    async def _visit(self, session: Session) -> list[str]:
        """Returns what was wrong. A command that is never answered ends by the deadline."""
        call = self._channel.stream_stream("/paceline.v1.Model/Session")(timeout=DEADLINE_S)
        answers = Answers()
        reader = asyncio.create_task(answers.read(call))
        faults: list[str] = []
        await answers.came()
        for step in session.steps:
            if isinstance(step, Call):
                named = Call(step.method, step.data + wrapped(1, answers.session_id.encode()))
                faults += await self._call(named)
                continue
            answers.expect(step)
            try:
                await call.write(step)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                break
        if "at once" not in session.ending:
            while answers.missing.total() and not reader.done():
                await answers.came()
        if "cancel" in session.ending:
            call.cancel()
        else:
            await call.done_writing()
        method = "Session"
        error = await reader
        if error is not None:
            faults += self._note(method, error)
        else:
            self.seen.count(method, "CANCELLED" if "cancel" in session.ending else "OK")
        for name, times in answers.failures.items():
            self.seen.count("Session: answers", name, times)
        return faults + answers.faults


class Answers:
    """Of one session."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.session_id = ""
        # By command id: answers that must still come.
        self.missing: Counter[int] = Counter()
        self.failures: Counter[str] = Counter()
        self.faults: list[str] = []

    def expect(self, data: bytes) -> None:
        """Every command is answered, once."""
        try:
            commands = model_pb2.SessionRequest.FromString(data).commands
        except DecodeError:
            # It ends the stream.
            return
        if len(commands) > MAX_COMMANDS:
            # So do these, and to look at millions of them takes minutes.
            return
        self.missing.update(each.command_id for each in commands if each.WhichOneof("command") not in SILENT)

    async def read(self, call: Any) -> grpc.aio.AioRpcError | None:
        """Until the stream's end; with what it ended."""
        try:
            while (data := await call.read()) is not grpc.aio.EOF:
                self._take(model_pb2.SessionResponse.FromString(data))
        except grpc.aio.AioRpcError as error:
            return error
        except asyncio.CancelledError:
            # By ourselves: the session's ending.
            return None
        finally:
            self._changed.set()
        return None

    async def came(self) -> None:
        """Until something comes, or the end."""
        await self._changed.wait()
        self._changed.clear()

    def _take(self, response: Any) -> None:
        self.session_id = self.session_id or response.session_info.session_id
        for answer in response.answers:
            if self.missing[answer.command_id] > 0:
                self.missing[answer.command_id] -= 1
            kind = answer.WhichOneof("answer")
            code = CODES.get(answer.failure.status.code) if kind == "failure" else grpc.StatusCode.OK
            self.failures["no code" if code is None else code.name] += 1
            if code is None or code in FORBIDDEN:
                self.faults.append(f"{kind} {answer.failure}")
            self.faults += wrong_in_answer(answer)
        self._changed.set()


def wrong_in_answer(answer: Any) -> list[str]:
    """Tokens that there are not, and numbers that are none."""
    kind = answer.WhichOneof("answer")
    if kind not in ("proposal", "verify_result"):
        return []
    found = getattr(answer, kind)
    if kind == "verify_result":
        numbers = [found.support_probs, found.logprobs.chosen, found.logprobs.top, found.prompt_logprobs.chosen]
    else:
        numbers = [found.support_probs, found.entropies]
    has_nan = any(np.isnan(np.frombuffer(each, "<f4")).any() for each in numbers)
    return [f"{kind}: {found}"] if has_nan or max(found.tokens, default=0) >= VOCAB_SIZE else []


def wrong_in_calls(method: str, answers: list[bytes]) -> list[str]:
    """A call that ended well has what it must have."""
    if not method.endswith("/Generate"):
        return [] if answers else ["no answer"]
    responses = [generation_pb2.GenerateResponse.FromString(data) for data in answers]
    indices = {each.index for each in responses}
    ended = [each.index for each in responses if each.HasField("finish")]
    tokens = [token for each in responses for token in each.token_ids]
    logprobs = [one.logprob for each in responses for one in (*each.logprobs, *each.prompt_logprobs)]
    is_whole = sorted(indices) == sorted(ended) and indices
    is_well = is_whole and max(tokens, default=0) < VOCAB_SIZE and not any(map(math.isnan, logprobs))
    return [] if is_well else [f"indices {indices}, ended {ended}, tokens {tokens}, log-probabilities {logprobs}"]


def coordinator_service(address: str) -> FuzzedService:
    return FuzzedService("coordinator", address, calls())


def model_service(role: str, address: str) -> FuzzedService:
    return FuzzedService(f"{role} server", address, visits(role))
