"""The target that comes back must be the one that went away.

A generation that began with one model's tokens would go on with another's, and the coordinator's tokenizer is the first
one's. So a target with other weights, or other bits, stays refused until the coordinator is started again. A draft may
change: what it proposes does not change the output.
"""

from paceline.errors import ConfigError
from paceline.v1 import model_pb2

# What decides the bits of the output, by the model card's field.
IDENTITY = {
    "weights_fingerprint": "weights",
    "tokenizer_fingerprint": "tokenizer",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "KV cache dtype",
    "device": "device",
    "max_model_len": "maximum length",
}


class SameModel:
    """Remembers the first server's model."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._first: model_pb2.ModelCard | None = None

    def check(self, card: model_pb2.ModelCard) -> None:
        """Raises ConfigError, naming what differs, for a card that is not the first one's."""
        first = self._first = self._first or card
        for field, name in IDENTITY.items():
            before, now = getattr(first, field), getattr(card, field)
            if before != now:
                raise ConfigError(
                    f"the target server at {self._address} came back with another {name}: {now!r} in place of {before!r} "
                    f"({card.name!r}, before {first.name!r}); start the coordinator again to use it"
                )
