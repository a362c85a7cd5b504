"""The loop of beam search: draft, verify, step, emit.

A round steps while the next tokens of all live hypotheses are known. Drafts change how many steps that is, not the result.
"""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from coordinator.acceptance import Origin, Outcome
from coordinator.beams.hypotheses import BeamRules, Beams, Hypothesis, NextTokens, Tokens
from coordinator.beams.hypothesis_sequences import DraftBeams, Drafted, TargetBeams, make_draft_beams
from coordinator.context import Context, Emission, no_token_allowed
from coordinator.drafters.drafter import Resources
from coordinator.remote.placement import Placement
from coordinator.reports import DraftReport
from coordinator.request import Request
from coordinator.stats import GenerationStats


def beam_search(
    context: Context,
    placement: Placement,
    timeout_s: float,
    resources: Resources,
    stats: GenerationStats,
    has_read: Callable[[], None],
) -> AsyncGenerator[Emission, None]:
    """`has_read` is called when the target has read the prompt, long before the first emission."""
    request = context.request
    # Drafted hypotheses would need states that were not reserved.
    draft = None if placement.link.num_state_tokens else make_draft_beams(resources, request)
    return search(context, draft, TargetBeams(placement, request, timeout_s), stats, has_read)


async def search(
    context: Context,
    draft: DraftBeams | None,
    target: TargetBeams,
    stats: GenerationStats,
    has_read: Callable[[], None],
) -> AsyncGenerator[Emission, None]:
    """Yields the best hypothesis at the end. Closing it early frees all caches."""
    grammar = context.request.grammar
    beams = Beams(rules_of(context.request), [Hypothesis(guide=None if grammar is None else grammar.guide())])
    known: dict[Tokens, NextTokens] = {}
    try:
        while not beams.is_over:
            started_s, num_decided = time.perf_counter(), len(beams.live[0].tokens)
            # The first step does not wait for the draft model to read the prompt.
            drafted = await draft.draft(beams) if draft is not None and num_decided else Drafted()
            paths = paths_of([each.tokens for each in beams.live], drafted.levels)
            wanted = {path for path in paths if any(path[:n] not in known for n in range(num_decided, len(path) + 1))}
            verified = await target.verify(paths, num_decided, wanted, beams.rules.num_next)
            has_read()
            known |= verified.next_tokens
            num_steps = take_steps(beams, known)
            known = {tokens: known[tokens] for tokens in known if len(tokens) >= num_decided + num_steps}
            # The first step needs no draft.
            report = DraftReport(
                drafter="model",
                draft_model=drafted.draft_model,
                compute_us=drafted.compute_us,
                queued_us=drafted.queued_us,
            )
            stats.count_round(num_steps, len(drafted.levels), num_steps - 1, started_s, report, verified.report)
        if not beams.finished:
            raise no_token_allowed()
        tokens = list(beams.best.tokens)
        emission = context.extend(Outcome(tokens, len(tokens) - 1, Origin.TARGET))
        stats.count_first_token()
        yield replace(emission, origins=[Origin.TARGET] * len(tokens))
    finally:
        if draft is not None:
            draft.release()
        target.release()


def rules_of(request: Request) -> BeamRules:
    sampling = request.sampling
    return BeamRules(sampling.beams, sampling.length_penalty, request.ending_ids, request.max_new_tokens)


def paths_of(live: Sequence[Tokens], levels: Sequence[Sequence[Tokens]]) -> list[Tokens]:
    """Drops drafts that are a prefix of another."""
    inner = {tokens[:length] for level in levels for tokens in level for length in range(len(live[0]), len(tokens))}
    return [tokens for level in (live, *levels) for tokens in level if tokens not in inner]


def take_steps(beams: Beams, known: dict[Tokens, NextTokens]) -> int:
    """Returns the number of steps."""
    num_steps = 0
    while not beams.is_over and all(each.tokens in known for each in beams.live):
        beams.step([known[each.tokens] for each in beams.live])
        num_steps += 1
    return num_steps
