"""The texts of token ids, which log-probabilities and traces show."""

from dataclasses import dataclass

from gateway.router import Coordinators

# Far above any vocabulary's size.
MAX_CACHED_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenText:
    """`text` distinguishes the token from others."""

    text: str
    utf8: bytes


class TokenTexts:
    """Caches token texts. All coordinators serve the same model."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._by_id: dict[int, TokenText] = {}

    def __getitem__(self, token: int) -> TokenText:
        return self._by_id[token]

    async def load(self, ids: set[int], key: str | None) -> None:
        missing = sorted(ids - self._by_id.keys())
        if not missing:
            return
        if len(self._by_id) + len(missing) > MAX_CACHED_TOKENS:
            self._by_id.clear()
            missing = sorted(ids)
        # A coordinator accepts at most a model's length of ids per call.
        size = (await self._coordinators.describe(key)).target.max_model_len
        for start in range(0, len(missing), size):
            batch = missing[start : start + size]
            found = await self._coordinators.detokenize(batch, key)
            for token, utf8 in zip(batch, found.pieces, strict=True):
                self._by_id[token] = TokenText(_readable(utf8), utf8)


def _readable(utf8: bytes) -> str:
    """Writes an incomplete character as "bytes:\\xe2\\x80", as OpenAI does."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in utf8)
