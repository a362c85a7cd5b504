"""What generations learn of drafting ahead, and share."""

import math
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from coordinator.drafters.rates import Rates
from coordinator.remote.link import Link
from paceline.recent_mean import RecentMean
from paceline.rpc.heartbeat import HEARTBEAT_S
from paceline.speculation_params import DraftMode

# Servers tell their load with each heartbeat.
LOAD_S = HEARTBEAT_S
# Weight of the newest observation in a mean.
RECENT = 0.05
# Prior chance that a draft is right, its weight in cases, and the factor on the weight of older cases.
FIRST_RATE, FIRST_WEIGHT, MEMORY = 0.75, 6.0, 0.998


@dataclass(slots=True)
class ServerRecord:
    """What was learned at one draft server."""

    # Seconds that a round waits for its proposal, without the server's forward passes.
    overhead_s: RecentMean = field(default_factory=lambda: RecentMean(RECENT))
    _rates: dict[DraftMode, Rates] = field(default_factory=dict)
    # Of this coordinator's commands, decaying.
    _used_s: float = 0.0
    _used_at_s: float = 0.0

    def rates(self, mode: DraftMode) -> Rates:
        """Returns the rates of "draft", of (k, whether it stopped early), all k drafts, and of "bonus", the token after."""

        def prior(kind: Hashable) -> float:
            if kind == "draft":
                return FIRST_RATE
            return rates["draft"] ** (kind[0] if isinstance(kind, tuple) else 1)

        rates = self._rates.setdefault(mode, Rates(prior, FIRST_WEIGHT, MEMORY))
        return rates

    def use(self, seconds: float) -> None:
        """Notes for how long a command took the server's device."""
        self._used_s, self._used_at_s = self.own_load * LOAD_S + seconds, time.monotonic()

    @property
    def own_load(self) -> float:
        """Returns this coordinator's own share of the server's time, in [0, 1] or a little above."""
        return self._used_s / LOAD_S * math.exp((self._used_at_s - time.monotonic()) / LOAD_S)


@dataclass(slots=True)
class AheadStats:
    num_hits: int = 0
    num_misses: int = 0
    # Seconds of the target's part of a round.
    verify_s: RecentMean = field(default_factory=lambda: RecentMean(RECENT))
    _servers: "WeakKeyDictionary[Link, ServerRecord]" = field(default_factory=WeakKeyDictionary)

    def at(self, link: Link) -> ServerRecord:
        if link not in self._servers:
            self._servers[link] = ServerRecord()
        return self._servers[link]
