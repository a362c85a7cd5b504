"""Probes: a model's drafts that seem not to pay are tried again, as loads and texts change."""

from dataclasses import dataclass

# Probes may take this fraction of the time.
SHARE = 0.01
# A probe is two rounds with one draft: in the first the model reads context that it missed, so only the second shows the
# cost of a draft.
PROBE_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """A test whether drafts pay. All generations that share forwards make it together: a test of one would cost the
    others as much time, and would not show the cost when all draft."""

    began_s: float
    # The time its first generation needs to read missed context: who needs more does not take part.
    reading_s: float

    def is_over(self, now_s: float, drafted_s: float, price_s: float) -> bool:
        """Whether it is time for the next probe, which takes `price_s`, when drafts were last made at `drafted_s`."""
        return now_s - max(drafted_s, self.began_s) > price_s / SHARE
