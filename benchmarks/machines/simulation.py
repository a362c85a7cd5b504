"""Simulates users of several machines: their speed with pairs, with separate targets and drafts, and without drafts.

A step of a server computes all jobs that wait there, in base + token * (new tokens) + cached * (tokens of their contexts).
Generations choose servers as in `coordinator/remote/pool.py`. Caches evict the conversation that was used least recently.
Not modeled: coordinators that are busy, limits on running generations, steps that wait for a fuller batch, and an adaptive
number of drafts, which falls to 0 if they do not pay.
"""

import heapq
import random
from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A step's new tokens, at most.
BATCH_TOKENS = 2048
# Length of a response, in tokens, that the choice of a server assumes.
EXPECTED_TOKENS = 128
# Tokens of the KV cache that fit into 80 GB: a pair's target and draft, and each on a machine of its own.
PAIR_CACHES, OWN_CACHES = (380_000, 500_000), (520_000, 1_500_000)
# Conversations. Answers have exponentially distributed lengths.
NUM_SYSTEM_PROMPTS, SYSTEM_TOKENS, QUESTION_TOKENS = 20, 800, 60
ANSWER_TOKENS, MIN_ANSWER_TOKENS = 250, 20
TURNS, MAX_CONTEXT_TOKENS = (2, 10), 6000
# Answers that are measured, after a time in which queues and caches fill.
MEASURED, WARM_UP_S = 400, 30.0
# Smaller differences between medians come from the seed.
NOISE = 0.05
MAX_SPLITS = 9


@dataclass(frozen=True, slots=True)
class Prices:
    """Milliseconds of a forward pass: for the weights, for each new token, and for each cached token that it reads."""

    base: float
    token: float
    cached: float

    @property
    def forward(self) -> float:
        """Returns the time of a forward pass of one token without context."""
        return self.base + self.token

    def scaled(self, factor: float) -> "Prices":
        return Prices(self.base * factor, self.token * factor, self.cached * factor)


# Llama 3.2 3B and 1B in bfloat16 on an H100, at 65 % of its bandwidth.
TARGET = Prices(2.95, 0.020, 114_688 / 2.18e9)
DRAFT = Prices(1.15, 0.007, 32_768 / 2.18e9)


@dataclass(frozen=True, slots=True)
class Load:
    num_users: int
    alpha: float = 0.8
    k: int = 4
    target: Prices = TARGET
    draft: Prices = DRAFT
    # Messages to a server and back, and the coordinator's time for them. A round has two servers.
    rpc_ms: float = 0.763
    think_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Deployment:
    num_targets: int
    num_drafts: int
    # Each machine has a target and a draft.
    is_paired: bool = False

    def __str__(self) -> str:
        if self.is_paired:
            return _counted(self.num_targets, "pair")
        targets, drafts = _counted(self.num_targets, "target"), _counted(self.num_drafts, "draft")
        return f"{targets}, {drafts}" if self.num_drafts else f"{targets}, no drafts"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Outcome:
    # Tokens per second of an answer after its first token: median and 5th percentile.
    speed: float
    slow_speed: float
    # Time to the first token: median and 99th percentile.
    first_ms: float
    slow_first_ms: float


@dataclass(slots=True, eq=False)
class Conversation:
    system_prompt: int
    num_turns: int
    num_tokens: int = SYSTEM_TOKENS


class Server:
    def __init__(self, machine: "Machine", prices: Prices, num_cache_tokens: int) -> None:
        self.machine, self.prices = machine, prices
        self.waiting: list[Generation] = []
        self.num_placed = 0
        # Of its current or last lease, and of its last step.
        self.lease_ms = self.step_ms = 0.0
        self._num_free = num_cache_tokens
        # Tokens by conversation, and by system prompt.
        self._cached: OrderedDict[Conversation | int, int] = OrderedDict()
        machine.servers.append(self)

    def num_known(self, conversation: Conversation) -> int:
        return self._cached.get(conversation, self._cached.get(conversation.system_prompt, 0))

    def remember(self, conversation: Conversation) -> None:
        self._keep(conversation.system_prompt, SYSTEM_TOKENS)
        self._keep(conversation, conversation.num_tokens)
        while self._num_free < 0:
            self._num_free += self._cached.popitem(last=False)[1]

    def _keep(self, key: Conversation | int, num_tokens: int) -> None:
        self._num_free += self._cached.pop(key, 0) - num_tokens
        self._cached[key] = num_tokens

    def cost(self, conversation: Conversation) -> tuple[float, int]:
        """Estimates the time to the end of an answer, without what all servers have in common."""
        num_unknown = conversation.num_tokens - self.num_known(conversation)
        return self.prices.token * (num_unknown + EXPECTED_TOKENS * self.num_placed), self.num_placed


class Machine:
    """Computes for one server, or in turns for a target and a draft."""

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.is_busy = False
        self._holder: Server | None = None

    def next_batch(self) -> "tuple[float, Server, list[Generation]] | None":
        """Returns a step's time, its server, and the jobs that it completes."""
        server = self._take_turns()
        if server is None:
            return None
        batch, server.waiting = server.waiting, []
        num_tokens = sum(each.num_new for each in batch)
        if num_tokens > BATCH_TOKENS:
            num_tokens, jobs, batch = 0, sorted(batch, key=lambda each: each.num_new), []
            for each in jobs:
                taken = min(each.num_new, BATCH_TOKENS - num_tokens)
                num_tokens += taken
                each.num_new -= taken
                (server.waiting if each.num_new else batch).append(each)
        num_cached, prices = sum(each.num_tokens for each in batch), server.prices
        server.step_ms = prices.base + prices.token * num_tokens + prices.cached * num_cached
        server.lease_ms += server.step_ms
        return server.step_ms, server, batch

    def _take_turns(self) -> Server | None:
        """Returns the server that computes: a lease lasts for a step, or several no longer than the peer's last lease."""
        waiting = [each for each in self.servers if each.waiting]
        if not waiting:
            return None
        server = waiting[0]
        if len(waiting) == 2 and self._holder is not None:
            holder, peer = waiting if waiting[0] is self._holder else reversed(waiting)
            server = holder if holder.lease_ms + holder.step_ms <= peer.lease_ms else peer
        if server is not self._holder:
            self._holder, server.lease_ms = server, 0.0
        return server


@dataclass(slots=True, eq=False)
class Generation:
    conversation: Conversation
    target: Server
    draft: Server | None
    started_ms: float
    # Of the context.
    num_tokens: int
    # Of the answer.
    max_tokens: int
    # Of the context, to be read by the draft.
    num_uncached: int
    # The current job: its server, the tokens to compute, and its forward passes.
    server: Server
    num_new: int
    num_forwards: int = 1
    num_made: int = 0
    first_ms: float = 0.0


class Simulation:
    def __init__(self, deployment: Deployment, load: Load, seed: int = 1) -> None:
        self.load = load
        self.now_ms = 0.0
        # Of each finished answer, its speed and the time to its first token.
        self.ended: list[tuple[float, float]] = []
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._num_events = 0
        # Probabilities that at most 0, 1, … drafts are accepted.
        self._accepted = [1 - load.alpha ** (i + 1) for i in range(load.k)]
        self._is_paired = deployment.is_paired
        machines = [Machine() for _ in range(deployment.num_targets)]
        of_target, of_draft = PAIR_CACHES if self._is_paired else OWN_CACHES
        self.targets = [Server(each, load.target, of_target) for each in machines]
        if not self._is_paired:
            machines = [Machine() for _ in range(deployment.num_drafts)]
        self.drafts = [Server(each, load.draft, of_draft) for each in machines]
        self._settle_users()

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.now_ms, _, happen, subject = heapq.heappop(self._events)
            happen(subject)

    def _settle_users(self) -> None:
        """Starts in the steady state: conversations of all ages, their contexts cached, and questions at a constant rate."""
        turns = range(TURNS[0], TURNS[1] + 1)
        # Long conversations are met more often.
        for num_turns in self._random.choices(turns, turns, k=self.load.num_users):
            num_past = self._random.randrange(num_turns)
            conversation = self._new_conversation(num_turns - num_past)
            conversation.num_tokens += num_past * (QUESTION_TOKENS + ANSWER_TOKENS)
            for each in self._choose(self._random.choice):
                each.remember(conversation)
            self._think(conversation)

    def _new_conversation(self, num_turns: int) -> Conversation:
        return Conversation(self._random.randrange(NUM_SYSTEM_PROMPTS), num_turns)

    def _choose(self, choose: Callable[[list[Server]], Server]) -> list[Server]:
        """Returns a target and, if there are any, a draft; a pair's own."""
        target = choose(self.targets)
        if self._is_paired or not self.drafts:
            return target.machine.servers
        return [target, choose(self.drafts)]

    def _at(self, delay_ms: float, happen: Callable[[Any], None], subject: Any) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._num_events, happen, subject))

    def _think(self, conversation: Conversation) -> None:
        self._at(self._random.expovariate(1 / self.load.think_s) * 1e3, self._ask, conversation)

    def _ask(self, conversation: Conversation) -> None:
        servers = self._choose(lambda pool: min(pool, key=lambda each: each.cost(conversation)))
        for each in servers:
            each.num_placed += 1
        num_tokens = conversation.num_tokens + QUESTION_TOKENS
        max_tokens = max(MIN_ANSWER_TOKENS, int(self._random.expovariate(1 / ANSWER_TOKENS)))
        target, draft = servers[0], servers[-1] if self.drafts else None
        # The draft reads the first token too.
        num_uncached = 0 if draft is None else num_tokens - draft.num_known(conversation) + 1
        num_new = num_tokens - target.num_known(conversation)
        made = Generation(
            conversation, target, draft, self.now_ms, num_tokens, max_tokens, num_uncached, target, num_new
        )
        self._at(self.load.rpc_ms, self._arrive, [made])

    def _arrive(self, jobs: list[Generation]) -> None:
        """Messages come one by one: the first starts an idle machine, the others wait for its next step."""
        for each in jobs:
            each.server.waiting.append(each)
            if not each.server.machine.is_busy:
                self._step(each.server.machine)

    def _step(self, machine: Machine) -> None:
        step = machine.next_batch()
        machine.is_busy = step is not None
        if step is not None:
            self._at(step[0], self._end_step, step[1:])

    def _end_step(self, step: tuple[Server, list[Generation]]) -> None:
        server, batch = step
        sent = []
        for each in batch:
            if each.num_forwards > 1:
                each.num_forwards -= 1
                each.num_new = 1
                server.waiting.append(each)
                continue
            if server is each.draft:
                each.server, each.num_new = each.target, self.load.k + 1
            else:
                self._verify(each)
            if each.num_made < each.max_tokens:
                sent.append(each)
            else:
                self._finish(each)
        if sent:
            self._at(self.load.rpc_ms, self._arrive, sent)
        self._step(server.machine)

    def _verify(self, made: Generation) -> None:
        num_accepted = 0
        if made.num_made == 0:
            made.first_ms = self.now_ms
        elif made.draft is not None:
            num_accepted = bisect(self._accepted, self._random.random())
            # The last draft and the bonus token, or the recovered token.
            made.num_uncached = 2 if num_accepted == self.load.k else 1
        made.num_made += num_accepted + 1
        made.num_tokens += num_accepted + 1
        made.num_new = 1
        if made.draft is not None:
            made.server, made.num_new, made.num_forwards = made.draft, made.num_uncached, self.load.k

    def _finish(self, made: Generation) -> None:
        speed = (made.num_made - 1) / (self.now_ms - made.first_ms) * 1e3
        self.ended.append((speed, made.first_ms - made.started_ms))
        conversation = made.conversation
        conversation.num_tokens = made.num_tokens
        conversation.num_turns -= 1
        for each in (made.target, made.draft):
            if each is not None:
                each.num_placed -= 1
                each.remember(conversation)
        if conversation.num_turns == 0 or conversation.num_tokens > MAX_CONTEXT_TOKENS:
            conversation = self._new_conversation(self._random.randint(*TURNS))
        self._think(conversation)


def simulate(deployment: Deployment, load: Load, seed: int = 1) -> Outcome:
    simulation = Simulation(deployment, load, seed)
    simulation.run(lambda: simulation.now_ms >= WARM_UP_S * 1e3)
    num_before = len(simulation.ended)
    simulation.run(lambda: len(simulation.ended) >= num_before + MEASURED)
    speeds, firsts = (sorted(each) for each in zip(*simulation.ended[num_before:], strict=True))
    return Outcome(
        speed=speeds[len(speeds) // 2],
        slow_speed=speeds[len(speeds) // 20],
        first_ms=firsts[len(firsts) // 2],
        slow_first_ms=firsts[len(firsts) * 99 // 100],
    )


def deployments(num_machines: int) -> list[Deployment]:
    """Returns plain decoding, pairs, and splits into targets and drafts: all of them, or some if there are many."""
    num_splits = min(num_machines - 1, MAX_SPLITS)
    splits = [round(num_machines * (i + 1) / (num_splits + 1)) for i in range(num_splits)]
    return [
        Deployment(num_machines, 0),
        Deployment(num_machines, num_machines, is_paired=True),
        *(Deployment(num_machines - num_drafts, num_drafts) for num_drafts in splits),
    ]


def best(outcomes: dict[Deployment, Outcome]) -> Deployment:
    """Returns the fastest for a user. Among those that differ by noise: no drafts, else pairs, else the soonest first token."""
    enough = (1 - NOISE) * max(each.speed for each in outcomes.values())
    fast = [each for each, outcome in outcomes.items() if outcome.speed >= enough]
    simple = [each for each in fast if each.is_paired or each.num_drafts == 0]
    return simple[0] if simple else min(fast, key=lambda each: outcomes[each].slow_first_ms)
