import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial

from coordinator.acceptance import SyntheticAcceptance, accept
from coordinator.admission import ActiveGenerations, Admission
from coordinator.beams.search import beam_search
from coordinator.context import Emission
from coordinator.decoding import generate
from coordinator.generate_response import Choice, make_responses, trace_round
from coordinator.policy.policies import Policies
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Endpoint, Pool
from coordinator.remote.target import RemoteTarget
from coordinator.request import Request
from coordinator.telemetry import CoordinatorMetrics, RequestSpan, log_generation
from coordinator.tokenizer import Tokenizer
from coordinator.unread import UnreadAnswer, UnreadAnswers
from paceline.results import RoundTrace

# Encoded messages of all choices; None when a choice is finished.
Answer = UnreadAnswer[Choice]


@dataclass(frozen=True, slots=True)
class Generations:
    """Runs generations. `target_timeout_s`: how long to wait for an unreachable target."""

    target: Pool
    # Of the targets (`coordinator.remote.target.identity_of`).
    identity: str
    tokenizer: Tokenizer
    admission: Admission
    policies: Policies
    target_timeout_s: float
    active: ActiveGenerations
    metrics: CoordinatorMetrics
    unread: UnreadAnswers
    synthetic: SyntheticAcceptance | None = None

    async def run(self, choice: Choice, answer: Answer, span: RequestSpan) -> None:
        """Raises what ended the generation early."""
        request = choice.context.request
        error: BaseException | None = None
        try:
            async with self.admission.slot(self.target.num_reserved_tokens(request), request.owner):
                choice.stats.admitted_s = time.perf_counter()
                self.metrics.observe_queue(choice.stats.admitted_s - choice.stats.arrived_s)
                await self._rounds(choice, answer)
            recent = self.policies.resources.recent
            if recent is not None:
                await recent.add(request.cache_salt, choice.context.tokens[len(request.prompt) :])
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.active.leave(choice)
            self.metrics.count_generation(choice)
            log_generation(choice, error)
            self._hand_over(answer, choice, None)
            span.add(choice, error)

    async def read(self, request: Request, endpoint: Endpoint) -> None:
        """Reads a prompt into a target's cache; the request's max_tokens is 0."""
        choice = Choice(0, request, self.tokenizer)
        async with (
            self.admission.slot(self.target.num_reserved_tokens(request)),
            contextlib.aclosing(self._generate(choice, endpoint)) as rounds,
        ):
            async for _ in rounds:
                pass

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
                    self.metrics.observe_gap(now_s - last_s)
                last_s = now_s
                if request.trace:
                    emission = replace(emission, trace=self._trace(choice, emission))
                self._hand_over(answer, choice, emission)

    def _generate(self, choice: Choice, endpoint: Endpoint | None = None) -> AsyncGenerator[Emission, None]:
        request = choice.context.request
        # A custom drafter may raise here, before the target counts the generation.
        policy = self.policies.make(request)
        target = RemoteTarget(self._placement(choice, endpoint), request, self.target_timeout_s)
        if self.synthetic is not None:
            choice.context.target_decides = False
        return generate(choice.context, policy, target, choice.stats, self.synthetic or accept)

    def _search(self, choice: Choice) -> AsyncGenerator[Emission, None]:
        has_read = partial(self.active.has_read, choice)
        return beam_search(
            choice.context,
            self._placement(choice),
            self.target_timeout_s,
            self.policies.resources,
            choice.stats,
            has_read,
        )

    def _placement(self, choice: Choice, endpoint: Endpoint | None = None) -> Placement:
        return Placement(self.target, choice.context.request, choice.context.tokens, endpoint)

    def _hand_over(self, answer: Answer, choice: Choice, emission: Emission | None) -> None:
        # Deferred, so that the next round's command is sent before this round's text.
        asyncio.get_running_loop().call_soon(self._write, answer, choice, emission)

    def _write(self, answer: Answer, choice: Choice, emission: Emission | None) -> None:
        if emission is None:
            answer.put(choice, None)
            return
        for response in make_responses(choice, emission, self.identity, self.synthetic):
            answer.put(choice, response)

    def _trace(self, choice: Choice, emission: Emission) -> RoundTrace:
        stats = choice.stats
        assert stats.last_round is not None, "a round has just been counted"
        return trace_round(stats.rounds, stats.last_round, emission, self.tokenizer.bytes_of)
