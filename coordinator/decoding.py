"""The loop. Read this file first: propose, verify, accept, truncate, emit.

After a round that leaves n tokens in the context, both caches are cut to n - 1 at most:
all but the newest token, which neither model has been fed. The next command brings what
a cache lacks, so no case here is special: not the prompt, not a full acceptance, not a
server that was restarted.
"""

import time
from collections.abc import AsyncGenerator

from coordinator.acceptance import Proposal, RoundNoise, accept
from coordinator.context import Context, Emission
from coordinator.drafting import Drafter
from coordinator.stats import GenerationStats
from coordinator.verifying import RemoteTarget


async def generate(
    context: Context, drafter: Drafter, target: RemoteTarget, stats: GenerationStats
) -> AsyncGenerator[Emission, None]:
    """Yields what each round emits until the context is finished. Closing it early frees both caches."""
    request = context.request
    rule = request.speculation.resolved_rule(request.sampling)
    # The prompt's own round has no drafts: the first token does not wait for the draft's prefill.
    proposal = Proposal()
    try:
        while not context.is_finished:
            started_s = time.perf_counter()
            if context.num_generated > 0:
                proposal = await drafter.propose(context, num_draft_tokens(context))
            verdict = await target.verify(context, proposal)
            outcome = accept(proposal, verdict, rule, RoundNoise(request.seed, len(context)))
            emission = context.extend(outcome)
            drafter.truncate(len(context) - 1)
            target.truncate(len(context) - 1)
            stats.count(proposal, verdict, outcome.num_accepted, emission, started_s)
            yield emission
    finally:
        drafter.release()
        target.release()


def num_draft_tokens(context: Context) -> int:
    """How many drafts this round can use: the round emits one more token than it accepts."""
    speculation = context.request.speculation
    wanted = speculation.num_draft_tokens if speculation.enabled else 0
    return min(wanted, context.num_remaining - 1)
