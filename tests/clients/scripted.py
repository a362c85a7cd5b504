"""A coordinator that reads requests as the real one does, and answers by a script."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import grpc
import torch

from coordinator.grammars import Grammars
from coordinator.request_reader import RequestReader
from coordinator.tokenizer import Tokenizer
from paceline.engine.models.weights import find_folder
from paceline.errors import PacelineError, Unavailable
from paceline.grammar import GRAMMAR_ENGINE
from paceline.rpc.status import abort_with
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2, generation_pb2_grpc, model_pb2

# The embedded model's tokenizer, with the context of the models that people give to agents.
TOKENIZER, VOCAB_SIZE, EOS = "smollm2-135m", 49152, 2
MODEL = "tiny"
MAX_MODEL_LEN = 65536
# Shorter than the first prompts of agents.
SHORT_MODEL_LEN = 4096
# As the target's cache shares them.
BLOCK_TOKENS = 64
RESTARTING = "the target server is restarting"
# Characters per round.
CHUNK = 7


class HttpError(Enum):
    # Before the first round.
    UNAVAILABLE = 1
    # After the first.
    BREAKS = 2
    # The model's context shrinks for one request.
    TOO_LONG = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: its reasoning, its text, then its calls."""

    text: str = ""
    reasoning: str = ""
    # Names and arguments.
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    # Ends for its length, within its last call or text.
    is_cut: bool = False
    fault: HttpError | None = None
    silence_s: float = 0.0

    def rounds(self, request_id: str) -> Iterator[generation_pb2.GenerateResponse]:
        for reasoning in _pieces(self.reasoning):
            yield _round(reasoning=reasoning)
        for text in _pieces(self.text, self.is_cut and not self.calls):
            yield _round(text=text)
        for index, (name, arguments) in enumerate(self.calls):
            head = generation_pb2.ToolCallDelta(index=index, id=f"call_{request_id[-20:]}{index}", name=name)
            yield _round(tool_calls=[head])
            is_last = index == len(self.calls) - 1
            for chunk in _pieces(json.dumps(arguments), self.is_cut and is_last):
                yield _round(tool_calls=[generation_pb2.ToolCallDelta(index=index, arguments=chunk)])

    @property
    def reason(self) -> generation_pb2.FinishReason:
        if self.is_cut:
            return generation_pb2.FINISH_REASON_LENGTH
        return generation_pb2.FINISH_REASON_TOOL_CALLS if self.calls else generation_pb2.FINISH_REASON_STOP


@dataclass(slots=True)
class Prompt:
    """What the model would read."""

    ids: list[int]
    num_cached: int


@dataclass(slots=True)
class Script:
    """Turns are for requests with tools, if `has_tools`: others ask for a title or the like. The last one is repeated."""

    turns: Sequence[Turn]
    has_tools: bool = True
    num_taken: int = 0
    # Of the requests that were answered.
    prompts: list[Prompt] = field(default_factory=list)
    is_silent: bool = False

    def next_turn(self) -> Turn:
        self.num_taken += 1
        return self.turns[min(self.num_taken, len(self.turns)) - 1]


class ScriptedCoordinator(generation_pb2_grpc.GenerationServicer):
    """Set `script` before each run of a client."""

    script: Script

    def __init__(self) -> None:
        folder = find_folder(TOKENIZER, torch.bfloat16, lambda _: None)
        names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
        files = {name: (folder / name).read_bytes() for name in names}
        self._tokenizer = Tokenizer(files)
        grammars = Grammars(files["tokenizer.json"], VOCAB_SIZE, [EOS])
        policies: Any = SimpleNamespace(check=lambda drafter: None)
        self._reader = RequestReader(self._tokenizer, grammars, policies, SpeculationParams())
        self._model_info = model_pb2.ModelInfo(
            name=MODEL, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS],
            grammar_engine=GRAMMAR_ENGINE,
        )  # fmt: skip

    async def Describe(self, request: Any, context: Any) -> generation_pb2.DescribeResponse:
        tokenizer = generation_pb2.TokenizerInfo(chat_template=self._tokenizer.chat_template)
        return generation_pb2.DescribeResponse(target=self._model_info, tokenizer=tokenizer)

    async def Tokenize(self, request: Any, context: Any) -> generation_pb2.TokenIds:
        return generation_pb2.TokenIds(ids=(await self._reader.prompts.read(request, self._model_info)).token_ids)

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        try:
            async for each in self._answer(request):
                yield each
        except PacelineError as error:
            await abort_with(context, error)

    async def _answer(self, request: generation_pb2.GenerateRequest) -> AsyncIterator[generation_pb2.GenerateResponse]:
        script, model_info = self.script, self._model_info
        is_main = bool(request.chat.tools) == script.has_tools
        turn = script.next_turn() if is_main else Turn("A title")
        if turn.fault is HttpError.UNAVAILABLE:
            raise Unavailable(RESTARTING)
        if turn.fault is HttpError.TOO_LONG:
            model_info = model_pb2.ModelInfo()
            model_info.MergeFrom(self._model_info)
            model_info.max_model_len = SHORT_MODEL_LEN
        prompt = (await self._reader.read(request, model_info)).prompt
        num_cached = max((_num_shared(each.ids, prompt) for each in script.prompts), default=0)
        if is_main:
            script.prompts.append(Prompt(prompt, num_cached))
        if turn.silence_s:
            script.is_silent = True
            await asyncio.sleep(turn.silence_s)
            script.is_silent = False
        num_tokens = 0
        for each in turn.rounds(request.request_id):
            each.prompt_tokens, each.cached_prompt_tokens = len(prompt), num_cached
            num_tokens += 1
            yield each
            if turn.fault is HttpError.BREAKS:
                raise Unavailable(RESTARTING)
        end = generation_pb2.GenerateResponse(prompt_tokens=len(prompt), cached_prompt_tokens=num_cached)
        end.finish.reason = turn.reason
        end.finish.prompt_tokens, end.finish.cached_prompt_tokens = len(prompt), num_cached
        end.finish.completion_tokens = num_tokens
        yield end


def _pieces(text: str, is_cut: bool = False) -> Iterator[str]:
    end = len(text) // 2 if is_cut else len(text)
    return (text[at : min(at + CHUNK, end)] for at in range(0, end, CHUNK))


def _round(**fields: Any) -> generation_pb2.GenerateResponse:
    """One token, whatever it adds."""
    origins = [generation_pb2.ORIGIN_TARGET]
    return generation_pb2.GenerateResponse(
        token_ids=[EOS + 1], text_lengths=[len(fields.get("text", ""))], origins=origins, **fields
    )


def _num_shared(old: Sequence[int], new: Sequence[int]) -> int:
    """Counts the tokens in whole blocks at the beginning of both."""
    pairs = zip(old, new, strict=False)
    num_shared = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))
    return num_shared // BLOCK_TOKENS * BLOCK_TOKENS
