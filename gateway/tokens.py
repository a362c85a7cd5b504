"""What tokens are called in log-probabilities: asked for once each, then known."""

from dataclasses import dataclass

from gateway.coordinators import Coordinators

# Far more than any vocabulary in use has.
MOST_KNOWN = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as a client sees it: its bytes, and a text that tells it from others."""

    text: str
    utf8: bytes


class TokenTexts:
    """Texts by token id. All coordinators of a gateway serve the same model."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._known: dict[int, TokenText] = {}

    def __getitem__(self, token: int) -> TokenText:
        return self._known[token]

    async def learn(self, ids: set[int], key: str | None) -> None:
        """Makes `ids` known. Raises what a coordinator raises."""
        unknown = sorted(ids - self._known.keys())
        if not unknown:
            return
        if len(self._known) + len(unknown) > MOST_KNOWN:
            self._known.clear()
            unknown = sorted(ids)
        # A coordinator takes no more ids at once than its model takes tokens.
        most = (await self._coordinators.describe(key)).target.max_model_len
        for start in range(0, len(unknown), most):
            await self._learn(unknown[start : start + most], key)

    async def _learn(self, ids: list[int], key: str | None) -> None:
        found = await self._coordinators.ask(
            "", lambda each: each.client_for(key).detokenize(ids, skip_special_tokens=False)
        )
        for token, utf8 in zip(ids, found.pieces, strict=True):
            self._known[token] = TokenText(_readable(utf8), utf8)


def _readable(utf8: bytes) -> str:
    """The token's text; part of a character as OpenAI writes it, "bytes:\\xe2\\x80"."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in utf8)
