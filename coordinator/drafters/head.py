"""The head drafter: collects what the target's draft head has drafted behind the round before, in that round's answer.

So its drafts cost no message, and are there when a round begins: to the adaptive policy they are looked up, by kinds that
say how sure the head was. Whether it is to draft again is decided with each round (`Policy.next_length`).
"""

from collections.abc import Hashable, Sequence

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, LookupDrafter, NoDrafter, Resources
from coordinator.remote.pool import Pool
from coordinator.remote.server_load import UNKNOWN_TIMES, ForwardTimes
from coordinator.reports import DraftReport, NextDrafts, VerifyReport
from coordinator.request import Request, may_use_head

# Kinds of drafts: by their confidence, in as many steps. Certain ones, which a format forces, have a kind of their own.
NUM_STEPS = 10


class HeadDrafter(LookupDrafter):
    """Drafts for a request that `may_use_head`. Proposes ids only, so `match` verifies them."""

    name = "head"

    def __init__(self, targets: Pool) -> None:
        self._targets = targets
        self._drafts: NextDrafts | None = None
        # Those of this round and the one before, until their acceptance is told.
        self._untold: list[NextDrafts] = []
        self._hits: list[tuple[int, bool]] = []

    @property
    def times(self) -> ForwardTimes:
        """Returns the seconds of the head's forward passes by their number of sequences."""
        return self._targets.draft_head_times or UNKNOWN_TIMES

    @property
    def is_there(self) -> bool:
        return self._targets.draft_head_times is not None

    def ask(self, context: Context, proposal: Proposal, num_drafts: int, min_probability: float) -> None:
        """Asks for drafts behind the round of `proposal`. That emits a token more than it accepts."""
        proposal.num_next = max(0, min(num_drafts, context.draft_room - len(proposal) - 1)) if self.is_there else 0
        proposal.next_min_probability = min_probability

    def take(self, report: VerifyReport) -> None:
        """Takes a round's answer."""
        self._drafts = report.next_drafts
        if self._drafts is not None:
            self._untold = [*self._untold[-1:], self._drafts]

    async def candidates(self, context: Context, num_tokens: int) -> Sequence[int]:
        self._tell(context.tokens)
        drafts = self._fitting(context)
        return [] if drafts is None else [_kind(each) for each in drafts.confidences[:num_tokens]]

    def take_hits(self) -> Sequence[tuple[int, bool]]:
        hits, self._hits = self._hits, []
        return hits

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        drafts = self._fitting(context)
        if drafts is None:
            reason = "the head drafted nothing" if self.is_there else "no target has a draft head"
            return Proposal(report=DraftReport(drafter=self.name, reason=reason))
        report = DraftReport(drafter=self.name, confidences=drafts.confidences[:num_draft_tokens])
        return Proposal(list(drafts.tokens[:num_draft_tokens]), report=report)

    @staticmethod
    def prior(kind: Hashable) -> float:
        """Returns the chance of acceptance of a draft by its kind alone: the confidence."""
        assert isinstance(kind, int)
        return min(1.0, (kind + 0.5) / NUM_STEPS)

    def _fitting(self, context: Context) -> NextDrafts | None:
        """Returns the drafts that follow the context, less those that forced tokens have reached; None after a move to another server."""
        drafts = self._drafts
        if drafts is None:
            return None
        forced = context.tokens[drafts.position :]
        num_known = len(context.tokens) - drafts.position
        if not 0 <= num_known < len(drafts.tokens) or forced != drafts.tokens[:num_known]:
            return None
        return NextDrafts(len(context.tokens), drafts.tokens[num_known:], drafts.confidences[num_known:])

    def _tell(self, tokens: Sequence[int]) -> None:
        """Compares drafts to the tokens that came in their places, up to the first that differs."""
        waiting, self._untold = self._untold, []
        for drafts in waiting:
            known = tokens[drafts.position : drafts.position + len(drafts.tokens)]
            if not known:
                self._untold.append(drafts)
            for draft, confidence, token in zip(drafts.tokens, drafts.confidences, known, strict=False):
                self._hits.append((_kind(confidence), draft == token))
                if draft != token:
                    break


def _kind(confidence: float) -> int:
    return int(confidence * NUM_STEPS)


def make_heads(resources: Resources, request: Request) -> list[LookupDrafter]:
    """Returns the head's drafter, if a target has a head and the request may use it."""
    targets = resources.targets
    if targets is None or targets.draft_head_times is None or not may_use_head(request):
        return []
    return [HeadDrafter(targets)]


def _fixed(resources: Resources, request: Request) -> Drafter:
    assert resources.targets is not None, "`missing` says that there is none"
    return HeadDrafter(resources.targets) if may_use_head(request) else NoDrafter()


def _missing(resources: Resources) -> str:
    has_head = resources.targets is not None and resources.targets.draft_head_times is not None
    return "" if has_head else "no target has a draft head"


FACTORY = Factory(_fixed, lambda resources, request: DrafterSet(make_heads(resources, request)), _missing)
