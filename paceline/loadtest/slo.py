"""What a user calls fast enough."""

import math
from dataclasses import dataclass, fields

from paceline.errors import InvalidArgument
from paceline.loadtest.record import Record


@dataclass(frozen=True, slots=True)
class Slo:
    """A request is good if it succeeds within all limits that are set, in milliseconds."""

    # Time to first token.
    ttft: float | None = None
    # The request's mean inter-token latency.
    itl: float | None = None
    # Time to the last token.
    e2e: float | None = None

    @property
    def label(self) -> str:
        """As a user types it."""
        limits = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ",".join(f"{name}={limit:g}" for name, limit in limits if limit is not None)

    def is_met_by(self, record: Record) -> bool:
        if not record.is_ok:
            return False
        times = ((record.ttft_ms, self.ttft), (record.mean_itl_ms, self.itl), (record.e2e_ms, self.e2e))
        return all(time is None or limit is None or time <= limit for time, limit in times)


def parse_slo(text: str) -> Slo:
    """From `ttft=500,itl=50`. Raises InvalidArgument."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        limits = {name.strip(): float(value) for name, _, value in pairs}
        ok = len(limits) == len(pairs) and all(0 < limit < math.inf for limit in limits.values())
        if ok:
            return Slo(**limits)
    except (ValueError, TypeError):
        pass
    raise InvalidArgument.of_value(
        "--slo", text, "of ttft, itl and e2e, each once, in milliseconds > 0: ttft=500,itl=50"
    )
