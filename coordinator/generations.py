"""Generations that run: each waits for its place, goes round by round, and is counted and told of when it is over."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial

from coordinator.acceptance import accept
from coordinator.admission import Admission
from coordinator.beams.search import search
from coordinator.beams.target import TargetBeams
from coordinator.choosing.active_generations import ActiveGenerations
from coordinator.completion_log import log_generation
from coordinator.context import Emission, Request
from coordinator.decoding import generate
from coordinator.drafting.factory import Proposers
from coordinator.drafting.recent_answers import RecentAnswers
from coordinator.metrics import CoordinatorMetrics
from coordinator.remote.link import Link
from coordinator.remote.target import RemoteTarget
from coordinator.responses import Choice, make_responses
from coordinator.spans import RequestSpan
from coordinator.synthetic import SyntheticAcceptance
from coordinator.text import Tokenizer
from coordinator.tracing import trace_round
from coordinator.unread import UnreadAnswer, UnreadAnswers
from paceline.results import RoundTrace

# What choices' tasks hand to the call: encoded messages; None when a task is over, however it ended.
Answer = UnreadAnswer[Choice]


@dataclass(frozen=True, slots=True)
class Generations:
    """All generations of the coordinator: what they share, and the way of each.

    `patience_s`: how long one waits for a target that went away; `synthetic`: for benchmarks, in place of the rule that
    decides; `recent`: remembers what is answered.
    """

    target: Link
    tokenizer: Tokenizer
    admission: Admission
    proposers: Proposers
    patience_s: float
    active: ActiveGenerations
    metrics: CoordinatorMetrics
    unread: UnreadAnswers
    synthetic: SyntheticAcceptance | None = None
    recent: RecentAnswers | None = None

    async def run(self, choice: Choice, answer: Answer, span: RequestSpan) -> None:
        """One generation from its place in the queue to its end. Raises what ended it early."""
        request = choice.context.request
        error: BaseException | None = None
        try:
            async with self.admission.place(self._room(request)):
                choice.stats.placed_s = time.perf_counter()
                self.metrics.count_place(choice.stats.placed_s - choice.stats.arrived_s)
                await self._rounds(choice, answer)
            if self.recent is not None:
                await self.recent.add(request.cache_salt, choice.context.tokens[len(request.prompt) :])
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.active.leave(choice)
            self.metrics.count_generation(choice)
            log_generation(choice, error)
            self._hand_over(answer, choice, None)
            span.add(choice, error)

    async def _rounds(self, choice: Choice, answer: Answer) -> None:
        request = choice.context.request
        rounds = self._search(choice) if request.sampling.beams > 1 else self._generate(choice)
        self.active.join(choice)
        last_s = None
        async with contextlib.aclosing(rounds):
            async for emission in rounds:
                self.active.has_read(choice)
                now_s = time.perf_counter()
                if last_s is not None:
                    self.metrics.count_gap(now_s - last_s)
                last_s = now_s
                if request.trace:
                    emission = replace(emission, trace=self._trace(choice, emission))
                self._hand_over(answer, choice, emission)

    def _generate(self, choice: Choice) -> AsyncGenerator[Emission, None]:
        request = choice.context.request
        target = RemoteTarget(self.target, request, self.patience_s)
        return generate(choice.context, self.proposers.make(request), target, choice.stats, self.synthetic or accept)

    def _search(self, choice: Choice) -> AsyncGenerator[Emission, None]:
        request = choice.context.request
        target = TargetBeams(self.target, request, self.patience_s)
        has_read = partial(self.active.has_read, choice)
        return search(choice.context, self.proposers.make_for_beams(request), target, choice.stats, has_read)

    def _hand_over(self, answer: Answer, choice: Choice, emission: Emission | None) -> None:
        # Later in this turn of the event loop: the next round's command goes out before this round's text.
        asyncio.get_running_loop().call_soon(self._write, answer, choice, emission)

    def _write(self, answer: Answer, choice: Choice, emission: Emission | None) -> None:
        if emission is None:
            answer.put(choice, None)
            return
        for response in make_responses(choice, emission, self.synthetic):
            answer.put(choice, response)

    def _trace(self, choice: Choice, emission: Emission) -> RoundTrace:
        stats = choice.stats
        assert stats.last_round is not None, "a round has just been counted"
        return trace_round(stats.rounds, stats.last_round, emission, self.tokenizer.bytes_of)

    def _room(self, request: Request) -> int:
        """Tokens of the target's cache that a generation may come to hold, whole blocks of them."""
        assert self.target.card is not None, "a request was read, with the card"
        block_size, beams = self.target.card.block_size, request.sampling.beams
        # Beams share the prompt's blocks, but for the last, which is filled in part.
        num_tokens = len(request.prompt) + beams * request.max_new_tokens + (beams - 1) * block_size
        return -(-num_tokens // block_size) * block_size
