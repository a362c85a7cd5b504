"""What a round costs: what the servers tell of their forward passes, and what such rounds took beside them.

Servers tell the seconds of a forward pass by its number of tokens, and learn them from their work
(`paceline.engine.scheduling.learned_times`). Rounds take longer: messages, the coordinator, others in the forward pass, a long
context, a slower server of a pool. That is one number for each kind of round, learned at each level of concurrency:

    seconds of a round = forward passes by the servers' times + extra seconds of its kind

Of a draft model's forward passes, which follow one another, a wrong time counts as often as it drafts: they are corrected by a
factor. Only rounds like most of the others count: a plain round that waits for another generation's drafts says nothing of how fast
all would be without.
"""

import enum
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from coordinator.admission import ActiveGenerations
from coordinator.remote.server_load import ForwardTimes
from coordinator.stats import Round
from paceline.recent_mean import RecentMean

# Weight of the newest observation; the first ones count alike.
RECENT = 0.05
# An observation is limited to this multiple of the prediction: a pause says nothing of the next round. The first few are not.
MAX_SURPRISE, FIRST_ROUNDS = 2.0, 3
# What is forgotten of a source's rounds in each round without its drafts.
FORGETTING = 0.01
# Factor on the weight of older rounds in a pace.
PACE_MEMORY = 0.95
# Rounds of each generation that a decision of all holds, for a model's drafts and against them. Meanwhile nothing is planned:
# that takes the coordinator time.
DRAFTING_ROUNDS, PLAIN_ROUNDS = 4, 8
# A draft that reads a longer tail is predicted, but not learned from: only shorter forward passes were measured.
MAX_TAIL = 64


class Began(enum.Enum):
    """How a round began: by a command that the target waited for, without drafts or with some that were looked up; or by
    itself, and whether drafts for the next one were sent to the target meanwhile."""

    ASKED = enum.auto()
    LOOKED_UP = enum.auto()
    FREE = enum.auto()
    SUGGESTING = enum.auto()


@dataclass(slots=True)
class Extra:
    """Seconds that rounds of a kind take beside their forward passes."""

    seconds: float = 0.0
    num_rounds: int = 0
    # In the target's forward passes.
    num_tokens: float = 0.0
    # Whether there was such a round since the target last told its times.
    is_recent: bool = False

    def learn(self, seconds: float, forwards_s: float, num_tokens: float) -> None:
        """Learns from a round. `forwards_s`: of its `seconds`, by the servers' times."""
        self.num_rounds += 1
        self.is_recent = True
        if self.num_rounds > FIRST_ROUNDS:
            seconds = min(seconds, MAX_SURPRISE * (forwards_s + self.seconds))
        weight = max(RECENT, 1 / self.num_rounds)
        self.seconds += weight * (seconds - forwards_s - self.seconds)
        self.num_tokens += weight * (num_tokens - self.num_tokens)

    def change_times(self, old: ForwardTimes, new: ForwardTimes) -> None:
        """What the target has learned of such rounds does not count twice."""
        if self.is_recent:
            self.seconds += old(self.num_tokens) - new(self.num_tokens)
        self.is_recent = False

    def fade(self, towards_s: float) -> None:
        self.seconds += RECENT * (towards_s - self.seconds)


NOTHING = Extra()


class RoundCosts:
    """Predicts seconds of rounds as if all active generations did the same, for they share the forward passes.

    It holds until something is learned; a plan asks it dozens of times.
    """

    def __init__(self, num_active: int, times: ForwardTimes, extras: Mapping[Hashable, Extra]) -> None:
        """`extras`: by kind of round; a kind that is not known takes what the nearest does."""
        self.num_active, self._times = num_active, times
        asked, looked_up, free, suggesting = map(extras.get, Began)
        asked_s = (asked or looked_up or NOTHING).seconds
        self.looked_up_extra_s = (looked_up or asked or NOTHING).seconds
        forward_s, free_extra_s = times(num_active), (free or NOTHING).seconds
        # A round without drafts that is asked for, and one that the target goes on with by itself; and what this saves.
        self.plain_s, self.free_s = _with_extra(forward_s, asked_s), _with_extra(forward_s, free_extra_s)
        self.message_s = self.plain_s - self.free_s
        # What sending drafts for the next round costs one that the target goes on with.
        most_s = max(0.0, asked_s - free_extra_s)
        suggestion_s = most_s / 2 if suggesting is None else max(0.0, suggesting.seconds - free_extra_s)
        # Not so much that it is never tried again.
        self.suggestion_s = min(most_s, suggestion_s)
        # Rounds that the target goes on with while drafts are on their way: one, or more where messages take longer.
        self.num_late = 1 + int(max(0.0, self.message_s) / self.free_s)
        # By the tokens of a draft: rounds with 0, 1, ... looked-up drafts.
        self._verify_s: dict[float, list[float]] = defaultdict(lambda: [self.plain_s])

    def verify_s(self, num_drafts: float) -> float:
        """Predicts a round of the target alone, whose drafts were looked up."""
        if not num_drafts:
            return self.plain_s
        # Drafts save nothing, whatever was learned of longer ones.
        return max(self.plain_s, self._times(self.num_active * (1 + num_drafts)) + self.looked_up_extra_s)

    def verify_times(self, most_drafts: int, num_tokens: float) -> list[float]:
        """Predicts the same for 0 to `most_drafts` drafts, or more, of `num_tokens` tokens each."""
        seconds = self._verify_s[num_tokens]
        while len(seconds) <= most_drafts:
            seconds.append(self.verify_s(len(seconds) * num_tokens))
        return seconds


@dataclass(slots=True)
class Pace:
    """Recent choices and the seconds that they took."""

    choices: float = 0.0
    seconds: float = 0.0

    def add(self, num_choices: int, seconds: float) -> None:
        self.choices = PACE_MEMORY * self.choices + num_choices
        self.seconds = PACE_MEMORY * self.seconds + seconds


@dataclass(slots=True)
class DraftForwards:
    """A draft model's forward passes: one for each token, or one for all. `source`: what their costs are learned by."""

    source: Hashable
    times: ForwardTimes
    are_parallel: bool

    def seconds(self, num_active: int, num_fed: float, num_drafts: float) -> float:
        """Returns the times of `num_drafts` tokens after feeding `num_fed`, for each of the active generations."""
        if self.are_parallel:
            return self.times(num_active * (num_fed + num_drafts - 1))
        return self.times(num_active * num_fed) + (num_drafts - 1) * self.times(num_active)


@dataclass(slots=True)
class Drafting:
    """How many times longer a draft model computes than its server tells."""

    factor: float = 1.0
    num_rounds: int = 0
    # Fed and drafted tokens of the newest round.
    counts: tuple[int, int] = 1, 1
    # What the server told last, and the number of all rounds when the newest with drafts was over.
    times: ForwardTimes | None = None
    newest: int = 0

    def follow(self, forwards: DraftForwards, num_active: int, num_rounds: int) -> None:
        """Follows what the server tells: what it has learned of such rounds does not count twice, and after others it knows
        better."""
        if self.times is not None and self.times != forwards.times:
            before_s = replace(forwards, times=self.times).seconds(num_active, *self.counts)
            factor = self.factor * before_s / forwards.seconds(num_active, *self.counts)
            # The newest of a source may be one that is not learned from.
            self.factor = factor if num_rounds - self.newest <= (PLAIN_ROUNDS + 2) * num_active else 1.0
        self.times = forwards.times

    def learn(self, computed_s: float, told_s: float, counts: tuple[int, int], num_rounds: int) -> None:
        self.num_rounds += 1
        self.newest, self.counts = num_rounds, counts
        ratio = computed_s / told_s
        if self.num_rounds > FIRST_ROUNDS:
            ratio = min(ratio, MAX_SURPRISE * self.factor)
        self.factor += max(RECENT, 1 / self.num_rounds) * (ratio - self.factor)


@dataclass(frozen=True, slots=True)
class Trial:
    """`gain`: of the best plan without it. `reading_s`: the longest reading of what was missed that it pays for."""

    source: Hashable
    gain: float
    reading_s: float


@dataclass(slots=True)
class Level:
    """What was learned at one level of concurrency."""

    # By kind of round: how it began, or the source of its drafts.
    extras: dict[Hashable, Extra] = field(default_factory=lambda: defaultdict(Extra))
    # By source.
    drafting: dict[Hashable, Drafting] = field(default_factory=lambda: defaultdict(Drafting))
    # Of all generations.
    pace: Pace = field(default_factory=Pace)
    # Rounds without a model's drafts, those that teach nothing included, and all rounds.
    num_plain: int = 0
    num_rounds: int = 0
    # Whether all draft, and the number of rounds up to which that holds.
    drafts: bool = False
    decided_until: int = 0
    # If they try a source, which would else lose.
    trial: Trial | None = None

    def guess(self) -> "Level":
        """Returns a first guess for another level."""
        guess = Level()
        guess.drafting.update(
            (source, replace(each, num_rounds=1, newest=each.newest - self.num_rounds))
            for source, each in self.drafting.items()
        )
        guess.extras.update((kind, replace(each, num_rounds=1)) for kind, each in self.extras.items())
        return guess


class CostModel:
    """Learns what rounds cost, and holds what all that share forward passes decide together for some rounds."""

    def __init__(self, active: ActiveGenerations, target_times: Callable[[], ForwardTimes]) -> None:
        self.active = active
        self._target_times, self._known_times = target_times, target_times()
        # By the bit length of the number of active generations.
        self._levels: dict[int, Level] = {}
        # Generations whose current round has a model's drafts; whether most do, or none (None: some); its changes.
        self._drafting: set[object] = set()
        self._most_draft: bool | None = False
        self._num_changes = 0
        # Recent mean of drafts in rounds without a model's, and in those with.
        self._num_drafts = {False: RecentMean(RECENT), True: RecentMean(RECENT)}
        self._rounds: RoundCosts | None = None

    def note(self, generation: object, is_drafting: bool) -> int:
        """Notes what a generation's next round does. Returns a number for `is_unchanged`."""
        (self._drafting.add if is_drafting else self._drafting.discard)(generation)
        most_draft = True if 2 * len(self._drafting) >= self.active.size else None if self._drafting else False
        if most_draft is not self._most_draft:
            self._most_draft, self._num_changes = most_draft, self._num_changes + 1
        return self._num_changes

    def is_unchanged(self, num_changes: int) -> bool:
        """Returns whether generations do as they did when `note` returned this number."""
        return num_changes == self._num_changes

    def decision(self) -> bool | None:
        """Returns whether all that share forward passes draft; None if that is to be decided, or for one alone without a trial."""
        level = self.level
        is_held = level.num_rounds < level.decided_until and (self.active.size > 1 or level.trial is not None)
        return level.drafts if is_held else None

    def decide(self, gains: bool, trial: Trial | None = None) -> None:
        """Decides for some rounds of all."""
        level = self.level
        level.drafts, level.trial = gains or trial is not None, trial
        level.decided_until = level.num_rounds + (DRAFTING_ROUNDS if level.drafts else PLAIN_ROUNDS) * self.active.size

    def end_trial(self) -> None:
        """Lets all decide anew."""
        self.level.decided_until = self.level.num_rounds

    @property
    def level(self) -> Level:
        size = self.active.size.bit_length()
        level = self._levels.get(size)
        if level is None or not level.extras:
            known = [other for other, each in self._levels.items() if each.extras]
            nearest = min(known, key=lambda other: abs(other - size), default=None)
            if nearest is not None:
                level = self._levels[nearest].guess()
            self._levels[size] = level = level or Level()
        return level

    @property
    def rounds(self) -> RoundCosts:
        """Returns what rounds take now."""
        times, size = self._times, self.active.size
        if self._rounds is None or self._rounds.num_active != size:
            self._rounds = RoundCosts(size, times, self.level.extras)
        return self._rounds

    def draft_s(self, forwards: DraftForwards, forgets: bool = False) -> Callable[[float, float], float]:
        """Returns what predicts the drafting of `num_drafts` tokens after feeding `num_fed`.

        forgets: discounts the delays of its rounds, the more the longer ago the last one was.
        """
        size, level = self.active.size, self.level
        drafting, extra = level.drafting[forwards.source], level.extras.get(forwards.source)
        drafting.follow(forwards, size, level.num_rounds)
        # Unless it is known, drafting waits for a message as well.
        more_s = max(0.0, self.rounds.message_s if extra is None else extra.seconds - self.rounds.looked_up_extra_s)
        if forgets:
            known = (1 - FORGETTING) ** ((level.num_rounds - drafting.newest) / size)
            more_s = known * more_s + (1 - known) * min(more_s, max(0.0, self.rounds.message_s))
        factor = drafting.factor
        return lambda num_fed, num_drafts: factor * forwards.seconds(size, num_fed, num_drafts) + more_s

    def learn(
        self, finished: Round, seconds: float, forwards: DraftForwards | None, num_drafted: int, is_like_others: bool,
        num_unfed: int, began: Began = Began.ASKED,
    ) -> None:  # fmt: skip
        """Learns from a round.

        `seconds`: since the generation's last round ended. `forwards`, `num_drafted`: of a model's drafts, or None and 0.
        `is_like_others`: whether most generations did the same, in the round before too.
        `num_unfed`: tokens that the target read before the drafts: 1, plus forced ones.
        """
        level, num_active, num_drafts = self.level, self.active.size, len(finished.proposal)
        level.num_plain += num_drafted == 0
        level.num_rounds += 1
        # One for each forward pass is enough, and learning from all would take a busy coordinator's time. Each time it is another
        # generation's.
        is_sampled = level.num_rounds % (num_active + (num_active > 1)) == 0
        if not is_sampled or self.active.was_reading_since(finished.verified_s - seconds):
            return
        level.pace.add(finished.num_chosen, seconds)
        draft = finished.proposal.report
        if draft.is_ahead or draft.num_tail_tokens > MAX_TAIL:
            # What the round waited for, or how long the draft read, says nothing of the drafting.
            return
        is_drafting, of_others = forwards is not None, self._num_drafts[forwards is not None]
        kind: Hashable = began if forwards is None else forwards.source
        of_others.add(num_drafts)
        if kind in level.extras and not (is_like_others and self._most_draft is is_drafting):
            return
        num_tokens = num_unfed + num_drafts + (num_active - 1) * (1 + of_others.value)
        forwards_s = self._times(num_tokens)
        if forwards is not None:
            drafting, counts = level.drafting[forwards.source], (draft.num_tail_tokens, num_drafted)
            told_s = forwards.seconds(num_active, *counts)
            drafting.follow(forwards, num_active, level.num_rounds)
            drafting.learn(draft.compute_us / 1e6 or finished.propose_s, told_s, counts, level.num_rounds)
            forwards_s += drafting.factor * told_s
        # Answers that a busy coordinator reads together seem to take no time; but a round takes its forward pass.
        level.extras[kind].learn(max(seconds, finished.verify_result.report.compute_us / 1e6), forwards_s, num_tokens)
        if began is Began.ASKED and forwards is None and Began.FREE in level.extras:
            # A measurement that was disturbed is repeated some day.
            level.extras[Began.FREE].fade(0.0)
            level.extras[Began.SUGGESTING].fade((level.extras[Began.FREE].seconds + level.extras[kind].seconds) / 2)
        self._rounds = None

    @property
    def _times(self) -> ForwardTimes:
        """Returns the target's times, as it last told them."""
        times = self._target_times()
        if times is not self._known_times:
            for level in self._levels.values():
                for each in level.extras.values():
                    each.change_times(self._known_times, times)
            self._known_times, self._rounds = times, None
        return times


def _with_extra(forward_s: float, extra_s: float) -> float:
    """Adds extra seconds, but keeps at least half of the forward pass: corrected times may leave an old kind's extra below zero."""
    return max(forward_s / 2, forward_s + extra_s)
