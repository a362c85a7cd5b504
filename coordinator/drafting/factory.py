"""The choice of a request's proposer."""

from collections.abc import Callable

from coordinator.context import Request
from coordinator.draft_length.factory import DraftLengthRules
from coordinator.drafting import Drafter, NoDrafter
from coordinator.drafting.hybrid import HybridProposer
from coordinator.drafting.ngram import NgramDrafter
from coordinator.drafting.prediction import PredictionDrafter, PredictionProposer
from coordinator.drafting.proposer import Proposer, Source
from coordinator.drafting.remote_model import RemoteDrafter
from coordinator.drafting.standby import StandbyDrafter
from coordinator.remote.link import Link
from paceline.checks import require
from paceline.sampling import Drafter as DrafterName

MakeDrafter = Callable[[Request], Drafter]


class Proposers:
    """Makes a proposer for each generation."""

    def __init__(self, draft: Link | None, custom: MakeDrafter | None, lengths: DraftLengthRules) -> None:
        """`draft`: None without a draft server; `custom`: None without --custom-drafter."""
        self._draft = draft
        self._custom = custom
        self._lengths = lengths

    def check(self, name: DrafterName) -> None:
        """Raises InvalidArgument for a drafter that this coordinator does not have."""
        require(
            name is not DrafterName.CUSTOM or self._custom is not None,
            "drafter", name.value, "model, ngram or hybrid: this coordinator has no --custom-drafter",
        )  # fmt: skip

    def make(self, request: Request) -> Proposer:
        """Makes the request's proposer. Without a draft server n-grams replace the draft model: they cost nothing."""
        speculation = request.speculation
        if not speculation.enabled or speculation.num_draft_tokens == 0:
            return Proposer(Source(NoDrafter(), self._lengths.make(speculation)))
        proposer = self._make_by_name(request)
        if not request.prediction:
            return proposer
        length = self._lengths.make_for_prediction(speculation)
        return PredictionProposer(PredictionDrafter(request.prediction), length, proposer)

    def _make_by_name(self, request: Request) -> Proposer:
        speculation = request.speculation
        length = self._lengths.make(speculation)
        match speculation.drafter:
            case DrafterName.CUSTOM:
                assert self._custom is not None, "`check` refuses it"
                return Proposer(Source(self._custom(request), length))
            case DrafterName.HYBRID:
                long_match = self._lengths.make(speculation, after_long_match=True)
                return HybridProposer(NgramDrafter(), long_match, self._model(request), length)
            case DrafterName.MODEL:
                return Proposer(Source(self._model(request), length))
            case DrafterName.NGRAM:
                return Proposer(Source(NgramDrafter(), length))

    def _model(self, request: Request) -> Drafter:
        if self._draft is None:
            return NgramDrafter()
        return StandbyDrafter(RemoteDrafter(self._draft, request), NgramDrafter())
