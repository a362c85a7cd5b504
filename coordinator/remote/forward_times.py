"""A server's forward times, as its model card tells them."""

from bisect import bisect_left

from paceline.v1 import model_pb2


class ForwardTimes:
    """Seconds of a forward by its number of tokens: linear between the measured sizes and after the last."""

    def __init__(self, card: model_pb2.ModelCard | None = None) -> None:
        """Without a card that tells them, each token takes a millisecond; the factors make that the true time."""
        points = [(at.num_tokens, at.microseconds / 1e6) for at in card.forward_times] if card is not None else []
        self._points = points if len(points) > 1 else [(0, 0.0), (1, 1e-3)]

    def __call__(self, num_tokens: float) -> float:
        right = min(max(1, bisect_left(self._points, (num_tokens, 0.0))), len(self._points) - 1)
        (size, seconds), (next_size, next_seconds) = self._points[right - 1 : right + 1]
        slope = (next_seconds - seconds) / (next_size - size)
        return seconds + slope * max(0.0, num_tokens - size)


UNKNOWN_TIMES = ForwardTimes()
