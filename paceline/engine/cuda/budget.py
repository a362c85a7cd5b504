"""The budget of a GPU's memory: weights, KV cache, activations, graphs and a reserve."""

from dataclasses import dataclass

from paceline.errors import ConfigError

MIB = 2**20
# For the workspaces of torch's libraries, and for gaps between tensors.
RESERVE_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Budget:
    """One server's budget. All sizes are in bytes."""

    # The whole GPU.
    total: int
    # The part of `total` that this server may use.
    fraction: float
    weights: int
    # The most that a forward of the largest batch takes beside weights and cache.
    activations: int
    # Captured graphs, with their arrays of fixed shapes.
    graphs: int
    # One block of the KV cache.
    block: int
    num_blocks: int

    @classmethod
    def fit(
        cls, total: int, fraction: float, weights: int, activations: int, graphs: int, block: int, cache: int | None
    ) -> "Budget":
        """Computes the number of blocks. `cache`: bytes for keys and values; None takes all that is left.

        Raises ConfigError with the budget if two blocks, or `cache` bytes, do not fit.
        """
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
        """The sum of all parts, in bytes."""
        return self.weights + self.activations + self.graphs + RESERVE_BYTES + self.block * self.num_blocks

    def __str__(self) -> str:
        return (
            f"weights {self.weights / MIB:,.0f} MiB, KV cache {self.block * self.num_blocks / MIB:,.0f} MiB "
            f"({self.num_blocks} blocks of {self.block / MIB:,.2f} MiB), activations {self.activations / MIB:,.0f} MiB, "
            f"graphs {self.graphs / MIB:,.0f} MiB, reserve {RESERVE_BYTES / MIB:,.0f} MiB: "
            f"{self.used / MIB:,.0f} MiB of {self.total * self.fraction / MIB:,.0f} "
            f"({self.fraction:g} of {self.total / MIB:,.0f})"
        )
