"""The choice of a request's proposer."""

from collections.abc import Callable

from coordinator.acceptance import DraftedBy
from coordinator.beams.drafter import BeamDrafter, ModelBeamDrafter, NoBeamDrafter
from coordinator.choosing import Source
from coordinator.choosing.chooser import Chooser
from coordinator.choosing.experience import Experience
from coordinator.choosing.look_up import LookUpSource, first_look_up_rate
from coordinator.choosing.model import ModelSource, first_model_rate
from coordinator.context import Request
from coordinator.drafting import Drafter, NoDrafter
from coordinator.drafting.deadline import DraftDeadline
from coordinator.drafting.hierarchical import HierarchicalDrafter
from coordinator.drafting.hybrid import HybridProposer
from coordinator.drafting.ngram import NgramDrafter
from coordinator.drafting.prediction import PredictionDrafter, PredictionProposer
from coordinator.drafting.proposer import FixedProposer, Proposer
from coordinator.drafting.recent_answers import RecentAnswers
from coordinator.drafting.remote_model import RemoteDrafter
from coordinator.drafting.standby import StandbyDrafter
from coordinator.drafting.suffix import SuffixDrafter
from coordinator.ngram_shape import DEFAULT_SHAPE, NgramShape
from coordinator.remote.link import Link
from paceline.checks import require
from paceline.speculation import MAX_DRAFT_TOKENS, Bounds
from paceline.speculation import Drafter as DrafterName

MakeDrafter = Callable[[Request], Drafter]


class Proposers:
    """Makes a proposer for each generation."""

    def __init__(
        self,
        draft: Link | None,
        custom: MakeDrafter | None,
        experience: Experience,
        recent: RecentAnswers | None = None,
        ngram_shape: NgramShape = DEFAULT_SHAPE,
    ) -> None:
        """`draft`: None without a draft server; `custom`: None without --custom-drafter; `recent`: None without
        answers to look up; `ngram_shape`: of all n-grams, whoever asks for them."""
        self._draft = draft
        self._deadline = DraftDeadline()
        self._custom = custom
        self._experience = experience
        self._recent = recent
        self._ngram_shape = ngram_shape

    def check(self, name: DrafterName) -> None:
        """Raises InvalidArgument for a drafter that this coordinator does not have."""
        require(
            name is not DrafterName.CUSTOM or self._custom is not None,
            "drafter",
            name.value,
            "model, hierarchical, ngram, suffix or hybrid: this coordinator has no --custom-drafter",
        )

    def make(self, request: Request) -> Proposer:
        """Makes the request's proposer. Without a draft server n-grams replace the draft model: they cost nothing."""
        speculation = request.speculation
        length = speculation.num_draft_tokens
        if not speculation.enabled or length == 0:
            return FixedProposer(NoDrafter(), 0)
        if isinstance(length, Bounds):
            return self._chooser(request, length)
        # The entropy rule itself runs in the draft server; this is only its limit.
        proposer = self._fixed(request, length if isinstance(length, int) else length.bounds.max)
        if not request.prediction:
            return proposer
        # The bound of an entropy rule is the draft model's alone.
        num_predicted = length if isinstance(length, int) else MAX_DRAFT_TOKENS
        return PredictionProposer(PredictionDrafter(request.prediction), num_predicted, proposer)

    def make_for_beams(self, request: Request) -> BeamDrafter:
        """Makes the drafter of a beam search. Only a draft model knows how likely all that may go on is.

        It drafts where the request says how far: with the draft that comes with Paceline drafted beams cost more than they
        save (docs/drafting.md), so no rule would choose them.
        """
        speculation = request.speculation
        length = speculation.num_draft_tokens
        asks_model = speculation.enabled and speculation.drafter.asks_model
        if self._draft is None or not asks_model or not isinstance(length, int) or length == 0:
            return NoBeamDrafter()
        return ModelBeamDrafter(self._draft, request, self._deadline, length)

    def _fixed(self, request: Request, num_draft_tokens: int) -> Proposer:
        match request.speculation.drafter:
            case DrafterName.CUSTOM:
                return FixedProposer(self._make_custom(request), num_draft_tokens)
            case DrafterName.HYBRID:
                return HybridProposer(self._ngram(), self._model_or_ngram(request), num_draft_tokens)
            case DrafterName.MODEL | DrafterName.HIERARCHICAL:
                return FixedProposer(self._model_or_ngram(request), num_draft_tokens)
            case DrafterName.NGRAM:
                return FixedProposer(self._ngram(), num_draft_tokens)
            case DrafterName.SUFFIX:
                return FixedProposer(self._suffix(request), num_draft_tokens)

    def _model_or_ngram(self, request: Request) -> Drafter:
        ngram = self._ngram()
        return ngram if self._draft is None else StandbyDrafter(self._remote(self._draft, request, ngram), ngram)

    def _ngram(self) -> NgramDrafter:
        return NgramDrafter(self._ngram_shape)

    def _remote(self, draft: Link, request: Request, ngram: NgramDrafter) -> RemoteDrafter:
        """`ngram`: guesses where the request asks for that."""
        if request.speculation.drafter is DrafterName.HIERARCHICAL:
            return HierarchicalDrafter(draft, request, self._deadline, ngram)
        return RemoteDrafter(draft, request, self._deadline)

    def _suffix(self, request: Request) -> SuffixDrafter:
        return SuffixDrafter(None if self._recent is None else self._recent.of(request.cache_salt))

    def _make_custom(self, request: Request) -> Drafter:
        assert self._custom is not None, "`check` refuses it"
        return self._custom(request)

    def _chooser(self, request: Request, bounds: Bounds) -> Chooser:
        name, is_greedy = request.speculation.drafter, request.sampling.is_greedy
        ngram = self._ngram()
        model = self._model_source(request, ngram)
        sources: list[Source] = []
        if request.prediction:
            # Right for long stretches: the bound of other drafts does not hold for it.
            rates = self._experience.rates(DraftedBy.PREDICTION, is_greedy, first_look_up_rate)
            sources.append(LookUpSource(PredictionDrafter(request.prediction), rates, most=MAX_DRAFT_TOKENS))
        if name in (DrafterName.SUFFIX, DrafterName.HYBRID):
            # Nor for long matches.
            rates = self._experience.rates(DraftedBy.SUFFIX, is_greedy, first_look_up_rate)
            sources.append(LookUpSource(self._suffix(request), rates, most=MAX_DRAFT_TOKENS))
        if name is not DrafterName.CUSTOM:
            rates = self._experience.rates(DraftedBy.NGRAM, is_greedy, first_look_up_rate)
            stands_in_for = model if name in (DrafterName.MODEL, DrafterName.HIERARCHICAL) else None
            sources.append(LookUpSource(ngram, rates, stands_in_for=stands_in_for))
        if model is not None:
            sources.append(model)
        return Chooser(sources, bounds, self._experience, is_greedy)

    def _model_source(self, request: Request, ngram: NgramDrafter) -> ModelSource | None:
        """The request's draft model or custom drafter; None without one. `ngram`: guesses where it is asked to."""
        name, is_greedy = request.speculation.drafter, request.sampling.is_greedy
        if name is DrafterName.CUSTOM:
            drafter, by = self._make_custom(request), DraftedBy.CUSTOM
        elif name in (DrafterName.NGRAM, DrafterName.SUFFIX) or self._draft is None:
            return None
        else:
            remote = self._remote(self._draft, request, ngram)
            drafter, by = remote, remote.drafted_by
        return ModelSource(drafter, by, self._experience.rates(by, is_greedy, first_model_rate), self._experience.costs)
