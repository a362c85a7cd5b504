"""The loop. Read this file first: propose, verify, accept, truncate, emit.

After a round that leaves n tokens in the context, both caches are cut to n - 1 at most:
all but the newest token, which neither model has been fed. The next command brings what
a cache lacks, so no case here is special: not the prompt, not a full acceptance, not a
server that was restarted.
"""

import time
from collections.abc import AsyncGenerator, Callable

from coordinator.acceptance import Outcome, Proposal, RoundNoise, accept
from coordinator.context import Context, Emission
from coordinator.draft_length import DraftLengthRule
from coordinator.drafting import Drafter
from coordinator.remote.target import RemoteTarget
from coordinator.round import Round
from coordinator.stats import GenerationStats

# `accept`, or what stands for it in a benchmark (see `synthetic`).
Decide = Callable[..., Outcome]


async def generate(
    context: Context,
    drafter: Drafter,
    length: DraftLengthRule,
    target: RemoteTarget,
    stats: GenerationStats,
    decide: Decide = accept,
) -> AsyncGenerator[Emission, None]:
    """Yields what each round emits until the context is finished. Closing it early frees both caches."""
    request = context.request
    rule, lenience = request.speculation.resolved_rule(request.sampling), request.speculation.lenience
    # The prompt's own round has no drafts: the first token does not wait for the draft's prefill.
    proposal = Proposal()
    try:
        while not context.is_finished:
            started_s = time.perf_counter()
            if context.num_generated > 0:
                proposal = await drafter.propose(context, min(length.choose(context), context.draft_room))
            proposed_s = time.perf_counter()
            verdict = await target.verify(context, proposal)
            verified_s = time.perf_counter()
            outcome = decide(proposal, verdict, rule, RoundNoise(request.seed, len(context)), lenience)
            finished = Round(proposal, verdict, outcome, started_s, proposed_s, verified_s)
            if context.num_generated > 0:
                length.learn(finished)
            emission = context.extend(outcome, verdict.prompt_logprobs)
            drafter.truncate(len(context) - 1)
            target.truncate(len(context) - 1)
            stats.count(finished, emission)
            yield emission
    finally:
        drafter.release()
        target.release()
