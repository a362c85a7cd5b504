"""Which n-grams are counted: of which orders, and among how many tokens.

Beside the settings, and not beside the drafter: who only reads settings need not import what drafting needs.
"""

from dataclasses import dataclass

from paceline.checks import require, require_type

MIN_ORDER, MAX_ORDER = 2, 8
# Three orders take up to 1.5 kB for each token, seven 3.5 kB: 200 and 460 MB at the most, for each table.
MAX_WINDOW_TOKENS = 2**17
ORDERS_ALLOWED = f"different whole numbers in [{MIN_ORDER}, {MAX_ORDER}] with commas between them, such as 4,3,2"


@dataclass(frozen=True, slots=True)
class NgramShape:
    """The shape of one generation's n-grams. Raises InvalidArgument on construction.

    window_tokens: how many of the newest tokens of prompt and completion are counted, from the longest order to 2^17.
    orders: tokens of an n-gram, its last one included; different numbers from 2 to 8 in any order, kept longest first.
    """

    window_tokens: int = 4096
    orders: tuple[int, ...] = (4, 3, 2)

    def __post_init__(self) -> None:
        require_type(self, int, "a whole number", "window_tokens")
        is_fit = bool(self.orders) and len(set(self.orders)) == len(self.orders)
        is_fit = is_fit and all(type(order) is int and MIN_ORDER <= order <= MAX_ORDER for order in self.orders)
        require(is_fit, "orders", ",".join(map(str, self.orders)), ORDERS_ALLOWED)
        object.__setattr__(self, "orders", tuple(sorted(self.orders, reverse=True)))
        require(
            self.orders[0] <= self.window_tokens <= MAX_WINDOW_TOKENS,
            "window_tokens", self.window_tokens, f"in [{self.orders[0]} (the longest order), {MAX_WINDOW_TOKENS}]",
        )  # fmt: skip

    @property
    def context_lengths(self) -> tuple[int, ...]:
        """Tokens of context, longest first: an n-gram's all but its last."""
        return tuple(order - 1 for order in self.orders)

    @property
    def longest_match(self) -> int:
        """The most tokens of context that are looked at."""
        return self.orders[0] - 1


DEFAULT_SHAPE = NgramShape()


def parse_orders(text: str) -> tuple[int, ...]:
    """From what a user types. Raises InvalidArgument."""
    parts = [part.strip() for part in text.split(",")]
    # int() refuses thousands of digits in words of its own.
    require(all(part.isdecimal() and len(part) < 3 for part in parts), "orders", text, ORDERS_ALLOWED)
    return NgramShape(MAX_WINDOW_TOKENS, tuple(map(int, parts))).orders
