"""The clock of one answer: from the request to its first token, and from each output to the next."""

import contextlib
import time

from gateway.metrics import GatewayMetrics
from paceline.results import Piece


class Watch(contextlib.AbstractContextManager["Watch"]):
    """Counts an answer's pieces while it is made."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._started_s = time.perf_counter()
        # When each choice's last output came.
        self._last_s: dict[int, float] = {}

    def __enter__(self) -> "Watch":
        self._metrics.count_waiting(1)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._last_s:
            self._metrics.count_running(-1)
        else:
            self._metrics.count_waiting(-1)

    def count(self, piece: Piece) -> None:
        metrics, now_s = self._metrics, time.perf_counter()
        if not self._last_s:
            metrics.count_waiting(-1)
            metrics.count_running(1)
            metrics.count_first_token(now_s - self._started_s)
        elif piece.index in self._last_s:
            metrics.count_gap(now_s - self._last_s[piece.index])
        self._last_s[piece.index] = now_s
        metrics.count_tokens(len(piece.token_ids))
        if piece.finish is not None:
            metrics.count_finish(piece.finish)
