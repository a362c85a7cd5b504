"""Settings that both model servers have. No torch: `--help` answers at once."""

from typing import Literal

from pydantic import ByteSize, Field

from paceline.settings import Settings


class ModelServerSettings(Settings):
    """Flags of a model server."""

    model: str = Field(
        "smollm2-135m", description="model: hub id, folder, .gguf file, smollm2-135m, or dummy:NAME for random weights"
    )
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="data type of weights and activations")
    quantization: Literal["none", "int8"] = Field("none", description="int8 keeps the weights in 8 bits")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the model runs")
    listen: str = Field("127.0.0.1:50051", description="HOST:PORT or unix:PATH")
    max_model_len: int | None = Field(
        None, ge=2, description="most tokens in a sequence; default: the model's own limit"
    )
    kv_cache_memory: ByteSize | None = Field(
        None, description="memory for keys and values, e.g. 2GiB or 500MB; default: 2GiB, or what a GPU's share leaves"
    )
    block_size: int | None = Field(
        None, ge=8, description="tokens in a KV cache block, a multiple of 8; default: 64, on a GPU 16"
    )
    prefix_caching: bool = Field(True, description="keep keys and values for prompts that begin alike")
    check_integrity: bool = Field(
        False, description="whenever idle, check the cache's bookkeeping and end at a fault (for tests)"
    )
    max_batch_tokens: int = Field(512, ge=32, description="most rows (tokens) in one forward")
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores this process may use")
    compute_lock_file: str | None = Field(
        None, description="lock file of model servers on the same cores: one computes at a time; default: none"
    )
    waiting: bool = Field(True, description="wait for a fuller batch where that pays")
    gpu_memory_fraction: float = Field(0.45, gt=0, le=1, description="share of a GPU's memory this server may take")
    deterministic: bool = Field(
        False, description="on a GPU: the same bits in any batch, as a CPU always has, at some cost in speed"
    )
