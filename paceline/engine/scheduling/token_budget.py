"""The token budget of a step: how many pending rows of each job it feeds.

Most of it goes to the jobs with the fewest pending rows, so that a round of drafts does not wait for a prompt, nor a
short prompt for a long one. By this alone a long prompt would never be fed while shorter jobs keep coming. So a part goes
to the jobs in the order in which they arrived. Whoever waits is then fed after a bounded number of steps: those that it
takes to feed, in such parts, the rows of all that came before.
"""

from collections.abc import Sequence

from paceline.engine.scheduling.job import Job
from paceline.speculation import MAX_DRAFT_TOKENS

# The part in order of arrival, as a fraction of the budget. The larger one if that leaves room for all rounds of
# drafts, else what they leave, and the smaller one in any case.
LARGER_PART = 4
SMALLER_PART = 16
# Most pending rows of a round: the last round's drafts and new ones.
ROUND_ROWS = 2 * MAX_DRAFT_TOKENS


def share_budget(jobs: Sequence[Job], budget: int, step: int) -> list[tuple[Job, int]]:
    """How many rows each job gets, without those that get none. `step` is the step's number.

    Jobs with equally many pending rows rotate from step to step.
    """
    first = step % len(jobs)
    shortest_first = sorted([*jobs[first:], *jobs[:first]], key=lambda job: len(job.pending))
    in_rounds = sum(len(job.pending) for job in jobs if len(job.pending) <= ROUND_ROWS)
    part = max(1, budget // SMALLER_PART, min(budget // LARGER_PART, budget - in_rounds))
    shares = dict.fromkeys(shortest_first, 0)
    oldest_first = sorted(jobs, key=lambda job: job.arrived_s)
    for queue, num_rows in ((oldest_first, part), (shortest_first, budget - part)):
        for job in queue:
            taken = min(len(job.pending) - shares[job], num_rows)
            shares[job] += taken
            num_rows -= taken
    return [(job, num_rows) for job, num_rows in shares.items() if num_rows > 0]
