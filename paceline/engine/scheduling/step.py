"""One engine step: how many tokens of each job it feeds, and which jobs fail with it.

Most of the token budget goes to the jobs with the fewest pending tokens, so that drafts and short prompts do not wait
for long prompts. A part goes to the jobs in order of arrival, so that every job is fed after a bounded number of steps.

An exception in a forward pass does not say which job caused it. After a failed step each job runs alone, and only those that
fail alone have failed. Recurrent states are lost in a failed forward; their jobs run alone when they come again.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from paceline.engine.scheduling.job import Job
from paceline.errors import DeviceLost, InternalError, InvalidArgument, PacelineError, Unavailable
from paceline.observability.logs import with_fields
from paceline.speculation_params import MAX_DRAFT_TOKENS

# The part in order of arrival, as a divisor of the budget: the larger part if all rounds of drafts still fit, else what
# they leave, but at least the smaller part.
LARGER_PART = 4
SMALLER_PART = 16
# Maximum pending tokens of a round: the last round's drafts and new ones.
ROUND_TOKENS = 2 * MAX_DRAFT_TOKENS


class StepRunner(Protocol):
    def step(self, shares: list[tuple[Job, int]]) -> None:
        """Feeds the given number of pending tokens of each job, and gives each job its samples.

        Raises DeviceLost if the device will fail every later step too.
        """
        ...


def share_budget(jobs: Sequence[Job], budget: int, step: int) -> list[tuple[Job, int]]:
    """Returns how many tokens each job feeds, if any, in the order of `jobs`.

    Equal jobs rotate with `step`, the step's number.
    """
    wanted = [(job, len(job.pending)) for job in jobs]
    if sum([num_tokens for _, num_tokens in wanted]) <= budget:
        return [(job, num_tokens) for job, num_tokens in wanted if num_tokens > 0]
    first = step % len(jobs)
    shortest_first = sorted([*jobs[first:], *jobs[:first]], key=lambda job: len(job.pending))
    in_rounds = sum(len(job.pending) for job in jobs if len(job.pending) <= ROUND_TOKENS)
    part = max(1, budget // SMALLER_PART, min(budget // LARGER_PART, budget - in_rounds))
    shares = dict.fromkeys(shortest_first, 0)
    oldest_first = sorted(jobs, key=lambda job: job.arrived_s)
    for queue, num_tokens in ((oldest_first, part), (shortest_first, budget - part)):
        for job in queue:
            taken = min(len(job.pending) - shares[job], num_tokens)
            shares[job] += taken
            num_tokens -= taken
    return [(job, shares[job]) for job in jobs if shares[job] > 0]


log = logging.getLogger(__name__)


def run_step(runner: StepRunner, shares: list[tuple[Job, int]]) -> dict[Job, PacelineError]:
    """Returns the errors of failed jobs. Raises DeviceLost if the device will fail every later call."""
    failed = _run(runner, shares)
    return failed | {job: _error_of(job, job.failure) for job, _ in shares if job.failure is not None}


def _error_of(job: Job, error: Exception) -> PacelineError:
    """Returns what the client is told of an error that is the job's own."""
    if isinstance(error, InvalidArgument):
        return error
    request_id = job.sequence.options.request_id
    log.error("engine step failed", exc_info=error, extra=with_fields(request_id=request_id))
    return InternalError("the engine failed on this command; see the server's log")


def _run(runner: StepRunner, shares: list[tuple[Job, int]]) -> dict[Job, PacelineError]:
    num_pending = {job: len(job.pending) for job, _ in shares}
    try:
        runner.step(shares)
    except DeviceLost:
        raise
    except Exception as error:
        if len(shares) == 1:
            return {shares[0][0]: _error_of(shares[0][0], error)}
        log.warning("an engine step of %d jobs failed, so each of them runs alone: %r", len(shares), error)
    else:
        return {}
    failed: dict[Job, PacelineError] = {}
    for job, num_tokens in shares:
        if len(job.pending) == num_pending[job] and job.sequence.is_intact:
            failed |= _run(runner, [(job, num_tokens)])
        else:
            # Its tokens are fed, but samples may be missing; or its cache is lost.
            failed[job] = Unavailable("the engine failed in the middle of this command")
    return failed
