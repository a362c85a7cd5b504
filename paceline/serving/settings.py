from typing import ClassVar

from pydantic import Field

from paceline.engine.engine_config import EngineConfig
from paceline.settings import GrpcSettings, ListenAddress, ServiceSettings

# Limits of a support (`paceline.serving.propose_job.Support`), unless a draft server's settings say others.
SUPPORT_SIZE, SUPPORT_MASS = 256, 0.995


class ModelServerSettings(GrpcSettings, ServiceSettings, EngineConfig):  # type: ignore[misc]  # both say how pydantic treats them
    """Settings of a model server."""

    first_in_help: ClassVar[tuple[str, ...]] = (
        "listen", "model", "device", "dtype", "quantization", "max_model_len", "kv_cache_memory", "threads",
        "gpu_memory_utilization",
    )  # fmt: skip
    without_flag: ClassVar[tuple[str, ...]] = ("step_timeout", "batch_delay")

    # Each role has its own default.
    listen: ListenAddress = Field(description="HOST:PORT or unix:PATH")
    step_timeout: float = Field(
        300.0, gt=0, le=86400, description="seconds after which an engine step counts as hung and the server exits"
    )
    check_integrity: bool = Field(
        False, description="for tests: check the KV cache's bookkeeping when idle, and exit if it is wrong"
    )
