"""Which drafter a request gets."""

from collections.abc import Callable

from coordinator.context import Request
from coordinator.draft_length import DraftLengthRule
from coordinator.draft_length.hybrid import HybridLength
from coordinator.drafting import Drafter, NoDrafter
from coordinator.drafting.hybrid import HybridDrafter
from coordinator.drafting.ngram import NgramDrafter
from coordinator.drafting.remote_model import RemoteDrafter
from coordinator.drafting.standby import StandbyDrafter
from coordinator.remote.link import Link
from paceline.sampling import Drafter as DrafterName
from paceline.sampling import require

MakeDrafter = Callable[[Request], Drafter]


class Drafters:
    """Makes a drafter for each generation."""

    def __init__(self, draft: Link | None, custom: MakeDrafter | None) -> None:
        self._draft = draft
        self._custom = custom

    def check(self, name: DrafterName) -> None:
        """Raises InvalidArgument for a drafter that this coordinator does not have."""
        require(
            name is not DrafterName.CUSTOM or self._custom is not None,
            "drafter", name.value, "model, ngram or hybrid: this coordinator has no --custom-drafter",
        )  # fmt: skip

    def make(self, request: Request, length: DraftLengthRule) -> Drafter:
        """Without a draft server n-grams stand in for the model: they cost nothing.

        `length`: the request's, which a hybrid drafter asks once it knows who proposes.
        """
        speculation = request.speculation
        if not speculation.enabled or speculation.num_draft_tokens == 0:
            return NoDrafter()
        match speculation.drafter:
            case DrafterName.CUSTOM:
                assert self._custom is not None
                return self._custom(request)
            case DrafterName.HYBRID:
                assert isinstance(length, HybridLength), "a hybrid has two drafters, and a rule for each"
                return HybridDrafter(NgramDrafter(), self._model(request), length)
            case DrafterName.MODEL:
                return self._model(request)
            case DrafterName.NGRAM:
                return NgramDrafter()

    def _model(self, request: Request) -> Drafter:
        if self._draft is None:
            return NgramDrafter()
        return StandbyDrafter(RemoteDrafter(self._draft, request), NgramDrafter())
