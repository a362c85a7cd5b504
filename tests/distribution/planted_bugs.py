"""Ways to play rounds wrongly, each a small departure from `Rounds` or from a function of the project."""

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise, VerifyResult
from draft_server.guessed_propose_job import GuessedProposeJob
from draft_server.parallel_propose_job import ParallelProposeJob
from paceline import noise
from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.specs import (
    ComplementSample,
    Sample,
    SampleSpec,
    SampleTruncated,
    TokensBefore,
    TruncatedSample,
)
from paceline.engine.scheduling.job import Job
from paceline.noise import Purpose
from paceline.sampling_params import SamplingParams
from paceline.serving.propose_job import ProposeJob, ProposeSpec
from paceline.speculation_params import DraftMode, Rule
from target_server.verify_job import VerifyJob
from tests.distribution.toy_rounds import Generation, Rounds, Table, Toy


class DropUnsure(Rounds):
    """Confidence stop that looks at the drawn token, and drops it."""

    keep = 0

    def sent(self, tokens: list[int], supports: list[NDArray[np.int64]], probs: list[NDArray[np.float32]]) -> Proposal:
        sure = [q[s == token].item() > 0.4 for token, s, q in zip(tokens, supports, probs, strict=True)]
        end = len(tokens) if all(sure) else sure.index(False) + self.keep
        return Proposal(tokens=tokens[:end], supports=supports[:end], support_probs=probs[:end])


class KeepUnsure(DropUnsure):
    """Confidence stop that submits the token it stops at."""

    keep = 1


class CarriedEma(Rounds):
    """The entropy rule's state is advanced over what was discarded too."""

    def advance_ema(self, generation: Generation, outcome: Outcome) -> None:
        if generation.emas:
            generation.ema = generation.emas[-1]


class ArgmaxSampler(CpuSampler):
    def sample(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Sample]:
        """Sends q, but takes its likeliest token."""
        samples = super().sample(logits, specs)
        return [replace(one, token=int(one.support[0])) for one in samples if isinstance(one, TruncatedSample)]


class DenseGreedy(Rounds):
    """Greedy as a way to draft, not as a distribution: p and q stay dense."""

    draft_sampler = ArgmaxSampler

    def __init__(self, toy: Toy) -> None:
        super().__init__(
            replace(toy, sampling=SamplingParams(temperature=1.0), rule=Rule.REJECTION, draft_mode=DraftMode.SAMPLED)
        )


@dataclass
class SharingNoise(RoundNoise):
    """Draws for one purpose with the noise of another."""

    shared: dict[Purpose, Purpose] = field(default_factory=dict)

    def uniform(self, index: int, purpose: Purpose) -> float:
        return RoundNoise.uniform(self, index, self.shared.get(purpose, purpose))


def sharing(**shared: Purpose) -> type[Rounds]:
    """The coordinator's draws with noise that another draw uses."""

    class Sharing(Rounds):
        def noise(self, generation: Generation) -> RoundNoise:
            by_purpose = {Purpose[name.upper()]: purpose for name, purpose in shared.items()}
            return SharingNoise(generation.seed, len(generation.tokens), by_purpose)

    return Sharing


class ForgetfulPenalties(VerifyJob):
    """Penalties at every position by the context without drafts."""

    def tokens_before(self, row: int) -> TokensBefore | None:
        return super().tokens_before(min(row, len(self.pending) - 1 - self._num_drafts))


class PenaltiesWithoutDrafts(Rounds):
    verify_job = ForgetfulPenalties


class LongTargetCache(Rounds):
    """The target's cache keeps the draft that was rejected, and is fed the newest token after it."""

    def truncate(self, generation: Generation, proposal: Proposal, outcome: Outcome) -> None:
        super().truncate(generation, proposal, outcome)
        if outcome.num_accepted < len(proposal):
            generation.target.tokens.append(proposal.tokens[outcome.num_accepted])

    def target_tail(self, generation: Generation) -> list[int]:
        return generation.tokens[-1:] if generation.target.length else list(generation.tokens)


class StaleTargetToken(Rounds):
    """The target's context has the rejected draft in place of the recovered token."""

    def __init__(self, toy: Toy) -> None:
        super().__init__(toy)
        self._stale: dict[Generation, int] = {}

    def truncate(self, generation: Generation, proposal: Proposal, outcome: Outcome) -> None:
        super().truncate(generation, proposal, outcome)
        if outcome.num_accepted < len(proposal):
            self._stale[generation] = proposal.tokens[outcome.num_accepted]

    def target_tail(self, generation: Generation) -> list[int]:
        *older, newest = super().target_tail(generation)
        return [*older, self._stale.pop(generation, newest)]


class ShortDraftCache(Rounds):
    """After a full acceptance the draft's cache is said to hold the last draft, which was never fed."""

    def draft_tail(self, generation: Generation) -> list[int]:
        return generation.tokens[-1:] if generation.draft.length else list(generation.tokens)


class NothingOutside(Rounds):
    """A residual that forgets what is outside the support."""

    def decide(self, generation: Generation, proposal: Proposal, verify_result: VerifyResult) -> Outcome:
        forgetful = replace(verify_result, outside_masses=[0.0] * len(verify_result.outside_masses))
        return super().decide(generation, proposal, forgetful)


class RecoveredFromP(Rounds):
    """The recovered token is drawn from p, not from what p has more than q."""

    def decide(self, generation: Generation, proposal: Proposal, verify_result: VerifyResult) -> Outcome:
        outcome = super().decide(generation, proposal, verify_result)
        if outcome.last_origin is not Origin.RECOVERED:
            return outcome
        index = outcome.num_accepted
        sums = (
            np.append(verify_result.support_probs[index], verify_result.outside_masses[index])
            .astype(np.float64)
            .cumsum()
        )
        number = self.noise(generation).uniform(index, Purpose.RESIDUAL)
        chosen = int(np.searchsorted(sums, number * sums[-1], side="right"))
        choices = [*proposal.supports[index].tolist(), verify_result.outside_tokens[index]]
        return replace(outcome, tokens=[*outcome.tokens[:-1], choices[chosen]])


class MisreportingSampler(CpuSampler):
    """Samples from q as `change` makes it, and sends q as it was before."""

    def __init__(self, change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> None:
        super().__init__()
        self._change = change

    def sample(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Sample]:
        results: list[Sample] = []
        for spec, samples in zip(specs, super().sample(logits, specs), strict=True):
            assert isinstance(spec, SampleTruncated)
            assert isinstance(samples, TruncatedSample)
            sums = self._change(samples.probs.astype(np.float64)).cumsum()
            chosen = np.searchsorted(sums, spec.uniform * sums[-1], side="right")
            results.append(replace(samples, token=int(samples.support[chosen])))
        return results


class QOfTheRowBefore(ParallelProposeJob):
    def absorb(self, samples: list[Sample]) -> None:
        super().absorb(with_q_of_the_row_before(samples))


def with_q_of_the_row_before(samples: list[Sample]) -> list[Sample]:
    sent = samples[:1]
    for before, drawn in itertools.pairwise(samples):
        assert isinstance(before, TruncatedSample)
        assert isinstance(drawn, TruncatedSample)
        sent.append(replace(drawn, support=before.support, probs=before.probs))
    return sent


class MisreportingMasks(Rounds):
    """With a draft from a mask row goes the q of the row before it."""

    parallel_job = QOfTheRowBefore


class SharedNoiseOfMasks(Rounds):
    """Drafts of one forward pass are drawn with one number: that the first was accepted says something of the second."""

    class parallel_job(ParallelProposeJob):
        def _spec(self, row: int, index: int) -> SampleSpec:
            spec, first = super()._spec(row, index), super()._spec(row, 0)
            assert isinstance(spec, SampleTruncated)
            assert isinstance(first, SampleTruncated)
            return replace(spec, uniform=first.uniform)


class OneHotGuesses(GuessedProposeJob):
    def _keep(self, sample: Sample) -> bool:
        assert isinstance(sample, TruncatedSample)
        index = len(self._samples)
        if self._is_checking and self._guess[index : index + 1] == [sample.token]:
            sample = replace(sample, support=np.array([sample.token]), probs=np.ones(1, np.float32))
        return super()._keep(sample)


class QOfTheGuess(Rounds):
    """A draft that was guessed goes with the guesser's distribution, all of it on the guess, and not the draft model's."""

    guessed_job = OneHotGuesses


class QOfTheRowAbove(GuessedProposeJob):
    def absorb(self, samples: list[Sample]) -> None:
        super().absorb(with_q_of_the_row_before(samples) if self._is_checking else samples)


class MisreportingGuesses(Rounds):
    """A draft drawn after a guess is sent with the q of the previous row."""

    guessed_job = QOfTheRowAbove


class KeptGuesses(Rounds):
    """A guess is kept although the draft model drew another token, with the model's q."""

    class guessed_job(GuessedProposeJob):
        def absorb(self, samples: list[Sample]) -> None:
            if self._is_checking:
                kept = zip(samples, [*self._guess, None], strict=False)
                samples = [as_if_drawn(sample, guess) for sample, guess in kept]
            super().absorb(samples)


def as_if_drawn(sample: Sample, token: int | None) -> Sample:
    assert isinstance(sample, TruncatedSample)
    return sample if token is None or token not in sample.support else replace(sample, token=token)


class RightGuessesAlone(Rounds):
    """The proposal ends before the first draft that was guessed wrongly."""

    class guessed_job(GuessedProposeJob):
        def _end_check(self, pending: list[int]) -> None:
            super()._end_check([])
            if pending and len(self._samples) <= len(self._guess):
                self._samples.pop()


class GuessesBehindAWrongOne(Rounds):
    """Drafts drawn after a wrong guess are sent, each with its own q."""

    class guessed_job(GuessedProposeJob):
        def absorb(self, samples: list[Sample]) -> None:
            self._samples = samples
            self.sequence.rollback(self._round_start)


def misreporting(change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> type[Rounds]:
    """A draft server that samples from what `change` makes of the q it sends; likeliest tokens come first."""
    return type("MisreportingRounds", (Rounds,), {"draft_sampler": staticmethod(lambda: MisreportingSampler(change))})


class WholeQ(Rounds):
    """A draft drawn from the tokens that the head knows is sent with the q of the whole vocabulary."""

    def sample_narrowly(
        self, places: Seq[tuple[Job, int]], logits: torch.Tensor, specs: Seq[SampleSpec], sampler: CpuSampler
    ) -> list[Sample]:
        whole = sampler.sample(logits.clone(), specs)
        return [
            replace(sent, token=drawn.token)
            for sent, drawn in zip(whole, super().sample_narrowly(places, logits, specs, sampler), strict=True)
            if isinstance(sent, TruncatedSample) and isinstance(drawn, TruncatedSample)
        ]


class QAtTheRequestsTemperature(Rounds):
    """Drafts drawn at the draft's own temperature T are sent with the q of the request's, which is 1: q ** T."""

    def sent(self, tokens: list[int], supports: list[NDArray[np.int64]], probs: list[NDArray[np.float32]]) -> Proposal:
        assert self.toy.draft_temperature is not None
        assert self.toy.sampling.temperature == 1
        flat = [q**self.toy.draft_temperature for q in probs]
        return super().sent(tokens, supports, [(q / q.sum()).astype(np.float32) for q in flat])


class TargetAtTheDraftsTemperature(Rounds):
    """The draft's own temperature reaches the target too."""

    def open(self, seed: int) -> Generation:
        generation = super().open(seed)
        generation.target.options = generation.draft.options
        return generation


class BonusFromDraft(Rounds):
    """The token after the last draft comes from q."""

    def logits(self, job: Job, row: int, table: Table) -> NDArray[np.float32]:
        is_bonus = isinstance(job, VerifyJob) and row == len(job.pending) - 1
        return super().logits(job, row, self.toy.draft if is_bonus else table)


class BonusOnePositionEarly(Rounds):
    """The token after the last draft comes from the p that judged that draft."""

    def logits(self, job: Job, row: int, table: Table) -> NDArray[np.float32]:
        is_bonus = isinstance(job, VerifyJob) and row == len(job.pending) - 1
        return super().logits(job, max(0, row - 1) if is_bonus else row, table)


def key_without_round(seed: int, round_start: int, position: int, purpose: Purpose) -> int:
    return noise.make_key(seed, 0, position, purpose)


def key_sharing_outside(shared: Purpose) -> Callable[[int, int, int, Purpose], int]:
    """The target draws outside the support with noise that another draw uses."""

    def key(seed: int, round_start: int, position: int, purpose: Purpose) -> int:
        return noise.make_key(seed, round_start, position, shared if purpose is Purpose.OUTSIDE else purpose)

    return key


def key_without_position(seed: int, position: int) -> int:
    return noise.match_key(seed, 0)


class TopOfTheResidual(RoundNoise):
    """The residual's last 2^-26 alone: what has next to no mass comes out, if it has any."""

    def uniform(self, index: int, purpose: Purpose) -> float:
        number = RoundNoise.uniform(self, index, purpose)
        return 1 - number / 2**26 if purpose is Purpose.RESIDUAL else number


class AtTheTop(Rounds):
    def noise(self, generation: Generation) -> RoundNoise:
        return TopOfTheResidual(generation.seed, len(generation.tokens))


class OneMinusSampler(CpuSampler):
    """The mass outside as 1 - the float32 mass inside; if there is nothing to draw, the last token."""

    def sample(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Sample]:
        return [
            replace(
                one,
                mass=max(0.0, float(1 - one.support_probs.sum())),
                token=one.token if one.mass > 0 else logits.shape[1] - 1,
            )
            if isinstance(one, ComplementSample)
            else one
            for one in super().sample(logits, specs)
        ]


class OneMinusInside(AtTheTop):
    target_sampler = OneMinusSampler


KEYED_BY_POSITION_ALONE: dict[str, Any] = {
    f"{module}.make_key": key_without_round
    for module in ("paceline.serving.propose_job", "target_server.verify_job", "coordinator.acceptance")
}
MATCHED_WITHOUT_POSITION: dict[str, Any] = {
    f"{module}.match_key": key_without_position
    for module in ("paceline.serving.propose_job", "target_server.verify_job")
}


# Name: toy, how its rounds are played, functions patched where they are used.
class OwnPositions(Rounds):
    """The draft's noise goes by its own positions: one may be that of an earlier round, after a token that it lacks."""

    def make_job(self, generation: Generation, spec: ProposeSpec) -> ProposeJob:
        return super().make_job(generation, replace(spec, target_position=None))


class QInTheDraftsOrder(Rounds):
    """Ids become the target's, and their probabilities stay in the order of the draft's."""

    def sent(self, tokens: list[int], supports: list[NDArray[np.int64]], probs: list[NDArray[np.float32]]) -> Proposal:
        shared = self.toy.vocabulary
        assert shared is not None
        orders = [np.argsort(shared.to_draft(support.tolist())) for support in supports]
        return super().sent(
            tokens,
            [np.sort(support) for support in supports],
            [q[order] for q, order in zip(probs, orders, strict=True)],
        )


BUGS: dict[str, tuple[str, type[Rounds], dict[str, Any]]] = {
    "confidence stop drops the drawn token": ("truncated", DropUnsure, {}),
    "carried entropies and noise keyed by position alone": ("entropy", CarriedEma, KEYED_BY_POSITION_ALONE),
    "argmax drafts accepted by dense p over q": ("greedy", DenseGreedy, {}),
    "accept shares the draft's noise": ("truncated", sharing(accept=Purpose.DRAFT), {}),
    "residual shares the draft's noise": ("truncated", sharing(residual=Purpose.DRAFT), {}),
    "residual shares accept's noise": ("spread", sharing(residual=Purpose.ACCEPT), {}),
    "outside token shares the residual's noise": (
        "truncated", Rounds, {"target_server.verify_job.make_key": key_sharing_outside(Purpose.RESIDUAL)},
    ),
    "penalties without the drafts before": ("penalties", PenaltiesWithoutDrafts, {}),
    "rejected draft left in the target's cache": ("penalties", LongTargetCache, {}),
    "rejected draft read in place of the recovered token": ("truncated", StaleTargetToken, {}),
    "residual forgets what is outside the support": ("truncated", NothingOutside, {}),
    "recovered token drawn from p": ("truncated", RecoveredFromP, {}),
    "whole q sent, sampled from the likeliest two": ("banned", misreporting(lambda q: q * (np.arange(len(q)) < 2)), {}),
    "q sent before rounding to quarters": ("spread", misreporting(lambda q: np.round(4 * q) / 4), {}),
    "q sent before temperature": ("spread", misreporting(lambda q: q**4), {}),
    "q sent at the request's temperature, drawn at a lower one": ("colder draft", QAtTheRequestsTemperature, {}),
    "q sent at the request's temperature, drawn at a higher one": ("hotter draft", QAtTheRequestsTemperature, {}),
    "target draws at the draft's temperature": ("hotter draft", TargetAtTheDraftsTemperature, {}),
    "target draws at the draft's temperature under match": (
        "hotter draft, coupled", TargetAtTheDraftsTemperature, {},
    ),
    "q over the whole vocabulary is sent for a draft of the tokens that the head knows": (
        "narrow head, whole support", WholeQ, {},
    ),
    "bonus token drawn from q": ("truncated", BonusFromDraft, {}),
    "bonus token drawn one position early": ("truncated", BonusOnePositionEarly, {}),
    "q of a mask row is that of the row before": ("parallel", MisreportingMasks, {}),
    "drafts of one forward pass drawn with one number": ("parallel", SharedNoiseOfMasks, {}),
    "q of a right guess is all on the guess": ("guessed", QOfTheGuess, {}),
    "q behind a guess is that of the row before": ("guessed, unlike rows", MisreportingGuesses, {}),
    "guess kept where the draft draws another token": ("guessed", KeptGuesses, {}),
    "draft ends before a wrong guess": ("guessed", RightGuessesAlone, {}),
    "draft of another vocabulary draws by its own positions": ("other vocabulary, unread tokens", OwnPositions, {}),
    "q of another vocabulary stays in the draft's order": ("other vocabulary", QInTheDraftsOrder, {}),
    "match with the same noise at every position": ("coupled", Rounds, MATCHED_WITHOUT_POSITION),
}  # fmt: skip
# Near relatives of the bugs that change no distribution: what makes each a bug is what it has besides.
HARMLESS: dict[str, tuple[str, type[Rounds], dict[str, Any]]] = {
    "confidence stop keeps the drawn token": ("truncated", KeepUnsure, {}),
    "carried entropies alone": ("entropy", CarriedEma, {}),
    "noise keyed by position alone": ("entropy", Rounds, KEYED_BY_POSITION_ALONE),
    "drafts behind a wrong guess are sent": ("guessed", GuessesBehindAWrongOne, {}),
    "draft reads a context with a hole": ("penalties", ShortDraftCache, {}),
}
