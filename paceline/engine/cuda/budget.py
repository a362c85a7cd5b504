"""What of a GPU's memory goes where."""

from dataclasses import dataclass

from paceline.errors import ConfigError

MIB = 2**20
# For the library's workspaces, and what is lost between tensors.
RESERVE_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Budget:
    """One server's share, in bytes."""

    total: int
    # Of the whole GPU.
    fraction: float
    weights: int
    # The most that a forward of the largest batch takes beside weights and cache.
    activations: int
    # Of captured graphs, arrays of fixed shapes among them.
    graphs: int
    block: int
    num_blocks: int

    @classmethod
    def fit(
        cls, total: int, fraction: float, weights: int, activations: int, graphs: int, block: int, cache: int | None
    ) -> "Budget":
        """`cache`: bytes for keys and values; None takes what is left. Raises ConfigError with the table where two
        blocks do not fit."""
        left = int(total * fraction) - weights - activations - graphs - RESERVE_BYTES
        num_blocks = (left if cache is None else cache) // block
        made = cls(total, fraction, weights, activations, graphs, block, max(0, num_blocks))
        if num_blocks < 2:
            option = "--gpu-memory-fraction" if cache is None else "--kv-cache-memory"
            raise ConfigError(f"no room for two blocks of keys and values; raise {option}; budget: {made}")
        if num_blocks * block > left:
            raise ConfigError(
                f"the KV cache does not fit; lower --kv-cache-memory or raise --gpu-memory-fraction; budget: {made}"
            )
        return made

    @property
    def used(self) -> int:
        """All of it together."""
        return self.weights + self.activations + self.graphs + RESERVE_BYTES + self.block * self.num_blocks

    def __str__(self) -> str:
        return (
            f"weights {self.weights / MIB:,.0f} MiB, KV cache {self.block * self.num_blocks / MIB:,.0f} MiB "
            f"({self.num_blocks} blocks of {self.block / MIB:,.2f} MiB), activations {self.activations / MIB:,.0f} MiB, "
            f"graphs {self.graphs / MIB:,.0f} MiB, reserve {RESERVE_BYTES / MIB:,.0f} MiB: "
            f"{self.used / MIB:,.0f} MiB of {self.total * self.fraction / MIB:,.0f} "
            f"({self.fraction:g} of {self.total / MIB:,.0f})"
        )
