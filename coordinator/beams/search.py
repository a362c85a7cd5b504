"""The loop of beam search, plain and with drafts: draft, verify, step, emit.

Speculation is appendix A.4 of Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (see
`drafter`). A round asks the target, in one batch, for the next tokens behind every live hypothesis and behind every
draft. Then steps follow while each live hypothesis is one whose next tokens are known. A step is the same with and
without drafts, so the answer is too: drafts change how many steps a round gives, never what they are.
"""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from coordinator.acceptance import Origin, Outcome
from coordinator.beams.hypotheses import BeamRules, Beams, NextTokens, Tokens
from coordinator.beams.models import BeamDrafter, TargetBeams
from coordinator.context import Context, Emission, Request
from coordinator.stats import GenerationStats, RoundCost


async def search(
    context: Context, drafter: BeamDrafter, target: TargetBeams, stats: GenerationStats, has_read: Callable[[], None]
) -> AsyncGenerator[Emission, None]:
    """Yields the best hypothesis, whole, at the end. Closing it early frees all caches.

    has_read: is called when the target has read the prompt, long before there is anything to yield.
    """
    beams = Beams(rules_of(context.request))
    known: dict[Tokens, NextTokens] = {}
    try:
        while not beams.is_over:
            started_s, num_decided = time.perf_counter(), len(beams.live[0].tokens)
            # The first token waits for no draft model that reads the prompt.
            levels = await drafter.draft(beams) if num_decided else []
            paths = paths_of([each.tokens for each in beams.live], levels)
            wanted = {path for path in paths if any(path[:n] not in known for n in range(num_decided, len(path) + 1))}
            verified = await target.verify(paths, num_decided, wanted, beams.rules.num_next)
            has_read()
            known |= verified.next_tokens
            num_steps = take_steps(beams, known)
            known = {tokens: known[tokens] for tokens in known if len(tokens) >= num_decided + num_steps}
            stats.count_beams(num_steps, len(levels), RoundCost(
                started_s, drafter.computed_us, verified.computed_us, drafter.queued_us + verified.queued_us,
                verified.cached_tokens,
            ))  # fmt: skip
        tokens = list(beams.best.tokens)
        emission = context.extend(Outcome(tokens, len(tokens) - 1, Origin.TARGET))
        stats.count_first_token()
        yield replace(emission, origins=[Origin.TARGET] * len(tokens))
    finally:
        drafter.release()
        target.release()


def rules_of(request: Request) -> BeamRules:
    sampling = request.sampling
    return BeamRules(sampling.beams, sampling.length_penalty, request.ending_ids, request.max_new_tokens)


def paths_of(live: Sequence[Tokens], levels: Sequence[Sequence[Tokens]]) -> list[Tokens]:
    """The longest of the live hypotheses and their drafts: all others are beginnings of these."""
    inner = {tokens[:length] for level in levels for tokens in level for length in range(len(live[0]), len(tokens))}
    return [tokens for level in (live, *levels) for tokens in level if tokens not in inner]


def take_steps(beams: Beams, known: dict[Tokens, NextTokens]) -> int:
    """Steps while the next tokens of all live hypotheses are known. Returns how many there were."""
    num_steps = 0
    while not beams.is_over and all(each.tokens in known for each in beams.live):
        beams.step([known[each.tokens] for each in beams.live])
        num_steps += 1
    return num_steps
