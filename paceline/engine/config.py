"""What an engine is told (EngineConfig) and what a model's shape is (ModelConfig)."""

from dataclasses import dataclass
from typing import Any

import torch

from paceline.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda")
SUPPORTED_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one model's engine; frozen, so that nobody changes them behind another's back."""

    model: str
    # "float32" or "bfloat16".
    dtype: str = "bfloat16"
    # "none" or "int8" (weights only).
    quantization: str = "none"
    # A row's bits depend on its own sequence alone; without that some products are faster. A draft can do without.
    same_bits: bool = True
    # "cpu" or "cuda".
    device: str = "cpu"
    # Of a GPU's memory.
    gpu_memory_fraction: float = 0.45
    # On a GPU: most steps of a job that run in one go (see `Job.multi_step_specs`).
    steps_ahead: int = 0
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
    turns_file: str | None = None
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


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a Llama-like decoder."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tied_embeddings: bool
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    # transformers' config, for the rotary frequencies.
    source: Any

    @classmethod
    def from_transformers(cls, config: Any) -> "ModelConfig":
        """Reads a transformers config. Raises ConfigError for architectures we have no forward for."""
        if config.model_type not in SUPPORTED_ARCHITECTURES:
            raise ConfigError(
                f"model type {config.model_type!r} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
            )
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if head_dim % 4:
            # The kernels take four features at a time, and check no bounds.
            raise ConfigError(f"head_dim is {head_dim}; it must be a multiple of 4")
        max_len = config.max_position_embeddings
        uses_window = getattr(config, "use_sliding_window", config.model_type == "mistral")
        window = getattr(config, "sliding_window", None)
        if uses_window and window:
            # Within the window, windowed attention is plain attention.
            max_len = min(max_len, window)
        eos = config.eos_token_id
        eos_ids = () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,)
        return cls(
            architecture=config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            norm_eps=config.rms_norm_eps,
            tied_embeddings=config.tie_word_embeddings,
            max_model_len=max_len,
            eos_token_ids=eos_ids,
            source=config,
        )

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one token adds to the cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes
