"""One engine step for several jobs, of which one may be the culprit if it fails.

A fault in a forward says nothing of whose rows caused it. So after a failed step each of its jobs runs alone. Those that
fail alone fail for good; the others go on, one step later.
"""

import logging

from paceline.engine.backend import StepRunner
from paceline.engine.scheduling.job import Job
from paceline.errors import DeviceLost, InternalError, PacelineError, Unavailable
from paceline.observability.logs import with_fields

log = logging.getLogger(__name__)


def run_step(runner: StepRunner, shares: list[tuple[Job, int]]) -> dict[Job, PacelineError]:
    """Feeds the given number of pending rows of each job. Returns the jobs that failed, and what their owners are told.

    Raises DeviceLost if the device fails every later call: then no answer is right.
    """
    num_pending = {job: len(job.pending) for job, _ in shares}
    try:
        runner.step(shares)
    except DeviceLost:
        raise
    except Exception as error:
        if len(shares) == 1:
            request_id = shares[0][0].sequence.options.request_id
            log.exception("engine step failed", extra=with_fields(request_id=request_id))
            return {shares[0][0]: InternalError("the engine failed on this command; see the server's log")}
        log.warning("an engine step of %d jobs failed, so each of them runs alone: %r", len(shares), error)
    else:
        return {}
    failed: dict[Job, PacelineError] = {}
    for job, num_rows in shares:
        if len(job.pending) == num_pending[job]:
            failed |= run_step(runner, [(job, num_rows)])
        else:
            # Its rows are fed, and whether it has all of its samples is not known.
            failed[job] = Unavailable("the engine failed in the middle of this command")
    return failed
