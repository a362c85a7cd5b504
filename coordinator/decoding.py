"""The loop. Read this file first: propose, verify, accept, truncate, emit.

After a round that leaves n tokens in the context, both caches are cut to n - 1 at most: all but the newest token,
which neither model has been fed. The next command brings what a cache lacks. So no case here is special: not the
prompt, not a full acceptance, not a server that was restarted.
"""

from collections.abc import AsyncGenerator, Callable

from coordinator.acceptance import Outcome, Proposal, RoundNoise, Verdict, accept
from coordinator.context import Context, Emission
from coordinator.policy.policy import Policy
from coordinator.remote.target import RemoteTarget
from coordinator.stats import GenerationStats, RoundTimer

# `accept`, or its replacement in a benchmark (see `synthetic`).
Decide = Callable[[Proposal, Verdict, RoundNoise], Outcome]


async def generate(
    context: Context, policy: Policy, target: RemoteTarget, stats: GenerationStats, decide: Decide = accept
) -> AsyncGenerator[Emission, None]:
    """Yields what each round emits until the context is finished. Closing it early frees both caches."""
    try:
        while not context.is_finished:
            timer = RoundTimer()
            proposal = await policy.propose(context)
            timer.mark_proposed()
            verdict = await target.verify(context, proposal)
            timer.mark_verified()
            outcome = decide(proposal, verdict, context.round_noise)
            finished = timer.finish(proposal, verdict, outcome)
            policy.learn(finished)
            emission = context.extend(outcome, verdict.report.prompt_logprobs)
            policy.truncate(len(context) - 1)
            target.truncate(len(context) - 1)
            stats.count(finished, emission)
            yield emission
    finally:
        # Drafts of a round that was cut off are undecided, and a server may offer what it keeps to other requests.
        policy.truncate(len(context) - 1)
        policy.release()
        target.release()
