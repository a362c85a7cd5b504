from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from paceline.client import AsyncClient, Completion, Prompt
from paceline.errors import ConfigError
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

# Draft tokens per round.
MEASURED_K = 4
# A generation this short is little more than prefill; subtracted from a long one it leaves rounds. It includes one round
# with drafts, in which the draft model prefills.
SHORT_TOKENS = 3
MIN_TOKENS = 8
SEED = 1

BUILT_IN_PROMPTS: list[Prompt] = [
    "What is the capital of France, and what is it famous for?",
    "Write a short letter that thanks a neighbour for watering the plants.",
    "A train leaves at 14:10 and arrives at 17:45. How long does the journey take? Explain step by step.",
    "Write a Python function that returns the largest number in a list.",
    "Explain in a few sentences why the sky is blue.",
    "Name five vegetables that grow in winter, with a word on each.",
]


@dataclass(frozen=True, slots=True)
class Measured:
    """Results at `k` drafts per round, one generation at a time. Costs in plain target forward passes."""

    k: int
    # Accepted / (accepted + rejected); drafts after a rejection or the end of the text count as neither.
    alpha: float
    # A draft step.
    draft_cost: float
    # A round's messages, event loops and queueing.
    rpc_cost: float
    # A forward pass that verifies k drafts; 1 in theory.
    verify_cost: float
    # Speed over the same services without speculation.
    speedup: float
    # A plain target forward pass, in milliseconds.
    target_ms: float
    accepted: int
    decided: int

    @property
    def row_cost(self) -> float:
        return max(0.0, (self.verify_cost - 1) / self.k)


@dataclass(slots=True)
class Tally:
    rounds: int = 0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    rejected: int = 0
    draft_ms: float = 0.0
    target_ms: float = 0.0
    between_ms: float = 0.0

    @property
    def round_ms(self) -> float:
        return self.draft_ms + self.target_ms + self.between_ms

    def add(self, completion: Completion, sign: int = 1) -> None:
        finish = completion.finish
        assert finish is not None
        self.rounds += sign * finish.speculation.rounds
        self.tokens += sign * len(completion.token_ids)
        self.proposed += sign * finish.speculation.proposed
        self.draft_ms += sign * finish.timing.draft_ms
        self.target_ms += sign * finish.timing.target_ms
        self.between_ms += sign * (finish.timing.queued_ms + finish.timing.rpc_ms)

    def add_decisions(self, completion: Completion) -> None:
        self.accepted += completion.origins.count("A")
        self.rejected += completion.origins.count("R")


async def measure(
    connect: Callable[[], AsyncClient], prompts: Sequence[Prompt], max_tokens: int, temperature: float
) -> Measured:
    """Runs each prompt with and without speculation. Raises ConfigError if that is not enough to measure."""
    params = {
        True: SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=MEASURED_K),
        False: SpeculationParams(enabled=False),
    }
    tallies = {True: Tally(), False: Tally()}
    samplings = [
        (-1, SamplingParams(max_tokens=SHORT_TOKENS, temperature=temperature, seed=SEED)),
        (1, SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=SEED)),
    ]
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TextColumn("generations"))
    console = Console(stderr=True)
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    async with connect() as client:
        # Warm up.
        for speculation in params.values():
            await client.complete(prompts[0], samplings[0][1], speculation)
        with progress:
            # Alternate, so that other load on the machine affects both alike.
            runs = [(enabled, *pair, prompt) for prompt in prompts for enabled in params for pair in samplings]
            for enabled, sign, sampling, prompt in progress.track(runs):
                completion = await client.complete(prompt, sampling, params[enabled])
                tallies[enabled].add(completion, sign)
                if sign > 0:
                    tallies[enabled].add_decisions(completion)
    return conclude(tallies[True], tallies[False])


def conclude(ahead: Tally, plain: Tally) -> Measured:
    """Raises ConfigError if there were too few rounds with or without drafts."""
    decided = ahead.accepted + ahead.rejected
    if decided == 0:
        raise ConfigError(
            "--measure: no draft was accepted or rejected; is there a draft server? paceline up starts one"
        )
    too_short = "--measure: the generated texts are too short; give a larger --max-tokens or other --prompts"
    if min(ahead.rounds, ahead.proposed, ahead.tokens, plain.rounds, plain.tokens) <= 0:
        raise ConfigError(too_short)
    forward_ms = plain.target_ms / plain.rounds
    step_ms = ahead.draft_ms / ahead.proposed
    if min(forward_ms, step_ms, ahead.round_ms) <= 0:
        raise ConfigError(too_short)
    return Measured(
        k=MEASURED_K,
        alpha=ahead.accepted / decided,
        draft_cost=step_ms / forward_ms,
        rpc_cost=max(0.0, ahead.between_ms / ahead.rounds / forward_ms),
        verify_cost=ahead.target_ms / ahead.rounds / forward_ms,
        speedup=(plain.round_ms / plain.tokens) / (ahead.round_ms / ahead.tokens),
        target_ms=forward_ms,
        accepted=ahead.accepted,
        decided=decided,
    )
