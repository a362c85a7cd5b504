"""Takes alpha, c and wire from running services: what `paceline plan --measure` does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from paceline.client import AsyncClient, Completion, Prompt
from paceline.errors import ConfigError
from paceline.sampling import SamplingParams
from paceline.speculation import Drafter, SpeculationParams

# Drafts in each measured round.
MEASURED_K = 4
# A generation cut off here has its prompt's prefill and hardly more; taken away from a long one, rounds
# are left. The draft prefills in its first round, so one draft token has to be in it.
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
    """What the services showed, at `k` drafts a round, one generation at a time."""

    k: int
    # Accepted drafts over decided ones: behind a rejection, a stop or a text's end nothing is decided.
    alpha: float
    # Time of a draft step over time of a plain target forward.
    draft_cost: float
    # A round's messages, event loops and waiting, in plain target forwards.
    wire: float
    # Time to verify k drafts over time of a plain target forward; the theory says 1.
    verify_cost: float
    # Rounds' speed over that of the same services without speculation.
    speedup: float
    # A plain target forward, in milliseconds.
    target_ms: float
    # Drafts that were accepted, and those that were accepted or rejected.
    accepted: int
    decided: int

    @property
    def row_cost(self) -> float:
        """What each drafted row adds to the time of a target forward, in plain target forwards."""
        return max(0.0, (self.verify_cost - 1) / self.k)


@dataclass(slots=True)
class Tally:
    """Sums over generations. Times in milliseconds."""

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
        """Counts a generation; with sign -1, takes it away."""
        finish = completion.finish
        assert finish is not None
        self.rounds += sign * finish.speculation.rounds
        self.tokens += sign * len(completion.token_ids)
        self.proposed += sign * finish.speculation.proposed
        self.draft_ms += sign * finish.timing.draft_ms
        self.target_ms += sign * finish.timing.target_ms
        self.between_ms += sign * (finish.timing.queued_ms + finish.timing.wire_ms)

    def add_decisions(self, completion: Completion) -> None:
        """Counts drafts that were accepted, and recovered tokens: one for each rejection."""
        self.accepted += completion.origins.count("A")
        self.rejected += completion.origins.count("R")


async def measure(
    connect: Callable[[], AsyncClient], prompts: Sequence[Prompt], max_tokens: int, temperature: float
) -> Measured:
    """Runs each prompt with and without speculation. Raises ConfigError where that shows nothing."""
    params = {
        True: SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=MEASURED_K),
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
        # Whatever a service does only once belongs to no round.
        for speculation in params.values():
            await client.complete(prompts[0], samplings[0][1], speculation)
        with progress:
            # With and without in turns, so that a busy machine hits both alike.
            runs = [(enabled, *pair, prompt) for prompt in prompts for enabled in params for pair in samplings]
            for enabled, sign, sampling, prompt in progress.track(runs):
                completion = await client.complete(prompt, sampling, params[enabled])
                tallies[enabled].add(completion, sign)
                if sign > 0:
                    tallies[enabled].add_decisions(completion)
    return conclude(tallies[True], tallies[False])


def conclude(ahead: Tally, plain: Tally) -> Measured:
    """Figures of rounds with drafts over rounds without. Raises ConfigError where there were too few of them."""
    decided = ahead.accepted + ahead.rejected
    if decided == 0:
        raise ConfigError(
            "--measure: no draft was accepted or rejected; is there a draft server? paceline up starts one"
        )
    too_short = "--measure: the texts are too short to tell; give a larger --max-tokens or other --prompts"
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
        wire=max(0.0, ahead.between_ms / ahead.rounds / forward_ms),
        verify_cost=ahead.target_ms / ahead.rounds / forward_ms,
        speedup=(plain.round_ms / plain.tokens) / (ahead.round_ms / ahead.tokens),
        target_ms=forward_ms,
        accepted=ahead.accepted,
        decided=decided,
    )
