"""Sessions with a model server: good ones, with steps changed, moved, repeated and left out."""

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

from paceline.v1 import model_pb2, sampling_pb2
from tests.fuzz.calls import LARGE_BYTES, Call, shown, unary_calls
from tests.fuzz.mutations import changed, encoded
from tests.fuzz.values import VOCAB_SIZE, messages
from tests.serving.raw_session import opening, propose, release, truncate, verify

ENDINGS = ("half-close", "half-close", "half-close", "cancel", "at once", "cancel at once")
# Of the shares of a message that change.
CHANGED_ONE_IN = 3


@dataclass(frozen=True, slots=True)
class Session:
    """Messages and unary calls, in this order; then its end: awaiting all answers or not, politely or not."""

    # Bytes go to the stream; calls that name no session are given this one's name.
    steps: tuple[bytes | Call, ...]
    ending: str

    def __len__(self) -> int:
        """Messages."""
        return len(self.steps)

    @property
    def is_large(self) -> bool:
        return any(each.is_large if isinstance(each, Call) else len(each) >= LARGE_BYTES for each in self.steps)

    def __str__(self) -> str:
        steps = "\n    ".join(str(each) if isinstance(each, Call) else shown(each) for each in self.steps)
        return f"Session, {self.ending}:\n    {steps}"


def _controlled(command: Any) -> None:
    """An Open with all there is."""
    opening(0.8)(command)
    command.open.cache_salt = "s"
    command.open.num_prompt_tokens = 5
    command.open.eos_token_ids.append(0)
    controls = sampling_pb2.SamplingParams(
        min_tokens=3, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.3, presence_penalty=0.5, logit_bias={7: 3.0},
        stop_token_ids=[9], banned_token_ids=[11], allowed_token_ids=range(100),
    )  # fmt: skip
    command.open.sampling.MergeFrom(controls)


def _with_entropy(command: Any) -> None:
    propose(7, [8, 9], 6)(command)
    command.propose.entropy_stop.rule.bounds.max = 6
    command.propose.entropy_stop.rule.ema_beta = 0.5
    command.propose.entropy_stop.entropy_ema = 0.3
    command.propose.min_probability = 0.2


def _with_guesses(command: Any) -> None:
    propose(4, [6], 16, draft_mode=3)(command)
    command.propose.guess_tokens.extend([7, 8, 9])


def _scored(command: Any) -> None:
    verify(0, [5, 6, 7, 8], [9, 10], support=[1, 2, 3])(command)
    command.verify.logprobs = 4
    command.verify.prompt_logprobs = 3


def _lenient(command: Any) -> None:
    verify(0, [5, 6], [7, 8, 9], rule=1)(command)
    command.verify.lenience = 0.5


def _going_on(command: Any) -> None:
    verify(0, [5, 6], [7], rule=1)(command)
    command.verify.num_more_rounds = 8


def _suggesting(command: Any) -> None:
    command.suggest.position = 3
    command.suggest.tokens.extend([7, 8, 9])


# Each inner list is a message: sequence ids, and what fills the command.
Message_ = list[tuple[int, Any]]
# By the command that feeds the model.
SCRIPTS: dict[str, list[list[Message_]]] = {
    "propose": [
        [[(1, opening()), (1, propose(0, [3, 4, 5], 4))], [(1, truncate(4)), (1, _with_guesses)], [(1, release)]],
        [[(1, _controlled)], [(1, propose(0, [1] * 5, 3))], [(1, truncate(7)), (1, _with_entropy)]],
        [[(1, opening(0)), (2, opening())], [(1, propose(0, [7] * 100, 2, draft_mode=2)), (2, propose(0, [7] * 100, 2))], [(2, release)]],
        [[(5, opening()), (5, propose(0, [8] * 400, 1)), (5, truncate(3))], [(5, propose(3, [1, 2], 8))]],
    ],
    "verify": [
        [[(1, opening()), (1, verify(0, [3, 4], [5, 6], support=[9]))], [(1, truncate(3)), (1, verify(3, [8], rule=1))], [(1, release)]],
        [[(1, _controlled)], [(1, _scored)], [(1, truncate(6)), (1, verify(6, [1], [2], support=list(range(VOCAB_SIZE))))]],
        [[(1, opening(0)), (2, opening())], [(1, _lenient), (2, verify(0, [7] * 100, [7] * 16, rule=1))], [(2, release)]],
        [[(5, opening(0)), (5, verify(0, [8] * 400, [1])), (5, truncate(3))], [(5, verify(3, [1, 2], [4] * 4))]],
        [[(1, opening(0)), (1, _going_on), (1, _suggesting)], [(1, _suggesting)], [(1, truncate(2)), (1, verify(2, [5], rule=1))]],
    ],
}  # fmt: skip


@functools.cache
def scripts(role: str) -> list[list[Message]]:
    """The messages of those SCRIPTS that a server executes, with the commands numbered."""
    made = []
    for script in SCRIPTS["propose"] if role == "draft" else [*SCRIPTS["verify"], *SCRIPTS["propose"]]:
        requests, number = [], 0
        for commands in script:
            request = model_pb2.SessionRequest()
            for sequence_id, fill in commands:
                number += 1
                fill(request.commands.add(command_id=number, sequence_id=sequence_id))
            requests.append(request)
        made.append(requests)
    return made


@st.composite
def sessions(draw: st.DrawFn, role: str) -> Session:
    """Some of a script's messages, in any order."""
    steps: list[bytes | Call] = []
    for request in _moved(draw, draw(st.sampled_from(scripts(role)))):
        match draw(st.integers(1, 24)):
            case 1:
                steps.append(draw(encoded(draw(messages(model_pb2.SessionRequest)))))
            case 2 | 3:
                steps.append(draw(unary_calls()))
            case number:
                is_changed = number % CHANGED_ONE_IN == 0
                message = draw(changed(request)) if is_changed else request
                # Damage mostly ends the stream, and what would come behind it.
                steps.append(draw(encoded(message, one_damaged_in=20)))
    return Session(tuple(steps), draw(st.sampled_from(ENDINGS)))


def _moved(draw: st.DrawFn, requests: Sequence[Message]) -> list[Message]:
    """As they are, or with one that is repeated, left out, or somewhere else."""
    moved = list(requests)
    at, other = (draw(st.integers(0, len(requests) - 1)) for _ in range(2))
    match draw(st.sampled_from(("", "", "", "", "repeated", "left out", "swapped", "commands turned round"))):
        case "repeated":
            moved.insert(other, moved[at])
        case "left out":
            del moved[at]
        case "swapped":
            moved[at], moved[other] = moved[other], moved[at]
        case "commands turned round":
            turned: Any = copy.deepcopy(moved[at])
            commands = list(turned.commands)[::-1]
            turned.ClearField("commands")
            turned.commands.extend(commands)
            moved[at] = turned
    return moved


def visits(role: str) -> st.SearchStrategy[Session | Call]:
    """All that may come to a model server."""
    return st.one_of(*[sessions(role)] * 5, unary_calls())
