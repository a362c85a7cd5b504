"""The loop. Read this file first: propose, verify, accept, truncate, emit.

After a round both caches are cut to the tokens before its last, which has not been fed. The next command brings what a
cache lacks, so prefill, full acceptance, forced tokens and a restarted server are not special cases.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from coordinator.acceptance import Outcome, Proposal, RoundNoise, VerifyResult, accept
from coordinator.context import Context, Emission
from coordinator.policy.policy import Policy
from coordinator.remote.target import RemoteTarget
from coordinator.stats import GenerationStats, Round

# `accept`, or `SyntheticAcceptance` in benchmarks.
Decide = Callable[[Proposal, VerifyResult, RoundNoise], Outcome]


async def generate(
    context: Context, policy: Policy, target: RemoteTarget, stats: GenerationStats, decide: Decide = accept
) -> AsyncGenerator[Emission, None]:
    """Yields each round's emission. Closing it early frees both caches."""
    try:
        while not context.is_finished:
            started_s = time.perf_counter()
            proposal = await policy.propose(context)
            proposed_s = time.perf_counter()
            proposal, verify_result = await target.verify(context, proposal)
            verified_s = time.perf_counter()
            outcome = decide(proposal, verify_result, context.round_noise)
            finished = Round(proposal, verify_result, outcome, started_s, proposed_s, verified_s)
            policy.learn(finished)
            emission = context.extend(
                outcome, verify_result.report.prompt_logprobs, verify_result.first_invalid_position
            )
            while context.has_more_forced:
                await asyncio.sleep(0)
                context.append_forced(emission)
            policy.truncate(context.num_fed)
            target.truncate(context.num_fed)
            stats.count(finished, emission)
            yield emission
    finally:
        # A cancelled round leaves undecided drafts, and servers share cached prefixes with other requests.
        try:
            policy.truncate(len(context) - 1)
            policy.release()
        finally:
            target.release(context.continued)
