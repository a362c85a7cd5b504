"""What an engine is told."""

from dataclasses import dataclass

import torch

from paceline.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one model's engine; frozen, so that nobody changes them behind another's back."""

    model: str
    # "float32" or "bfloat16".
    dtype: str = "bfloat16"
    # "none" or "int8" (weights only).
    quantization: str = "none"
    # A row's bits depend on its own sequence alone; without that some products are faster. A draft can do without.
    batch_invariant: bool = True
    # "cpu" or "cuda".
    device: str = "cpu"
    # Of a GPU's memory.
    gpu_memory_fraction: float = 0.45
    # On a GPU: most steps of a job that run in one go (see `Job.multi_step_specs`).
    multi_steps: int = 0
    # Most tokens in a sequence; None takes the model's own limit.
    max_model_len: int | None = None
    # None takes 2 GiB on CPU, on a GPU what its fraction leaves.
    kv_cache_bytes: int | None = None
    # Tokens in a KV block; None takes 64 on CPU, 16 on a GPU.
    block_size: int | None = None
    # Keep what was computed for beginnings that come again.
    prefix_caching: bool = True
    # Most rows in one forward.
    max_batch_tokens: int = 512
    # None takes all cores this process may use.
    threads: int | None = None
    # File by which servers on the same cores take turns; None: they don't.
    compute_lock_file: str | None = None
    # When to wait for a fuller batch.
    waiting: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.quantization not in ("none", "int8"):
            raise ConfigError(f"quantization is {self.quantization!r}; it must be none or int8")
        if self.device not in DEVICES:
            raise ConfigError(f"device is {self.device!r}; it must be {' or '.join(DEVICES)}")
        if self.block_size is not None and (self.block_size < 8 or self.block_size % 8):
            raise ConfigError(f"block_size is {self.block_size}; it must be a multiple of 8 tokens")
        if self.max_batch_tokens < 32:
            raise ConfigError(f"max_batch_tokens is {self.max_batch_tokens}; it must be at least 32")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len is {self.max_model_len}; it must be at least 2 tokens")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]
