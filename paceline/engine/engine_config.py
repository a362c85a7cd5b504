"""Engine settings, model roles and the cache folder. No torch."""

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, field_validator


@dataclass(frozen=True, slots=True)
class ModelRole:
    """Requirements of a draft or a target, whatever the settings are."""

    name: str
    # A draft needs no batch invariance, which slows some products: what it proposes changes no output.
    batch_invariant: bool = True
    # On a GPU: maximum steps of a job in one program (see `Job.multi_step_specs`).
    multi_steps: int = 0
    # Token ids that the head knows from the first on, besides those of a context; 0: all, None: the device's default.
    vocab_size: int | None = 0
    # Of a target: a folder, "none", or "auto" for the one that is known for the model or in its checkpoint.
    draft_head: str = "none"


TARGET_ROLE = ModelRole("target")
# Adaptive k drafts at most eight tokens, and the step that reads the tail samples the first.
DRAFT_ROLE = ModelRole("draft", batch_invariant=False, multi_steps=7, vocab_size=None)


class EngineConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(
        "smollm2-135m",
        description="name from `paceline models`, hub id, folder, GGUF file, or dummy:NAME for random weights",
    )
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="data type of weights and activations")
    quantization: Literal["auto", "none", "int8", "int4"] = Field(
        "auto",
        description="auto: keep GGUF quantization (on a CPU with bfloat16); none: dequantize to --dtype; "
        "int8: quantize the other weights too; int4: round all weights of more than 4 bits to Q4_1",
    )
    implementation: Literal["auto", "own", "transformers"] = Field(
        "auto",
        description="who computes the layers; own: this engine; transformers: its modules, over this engine's cache and "
        "products; auto: own if it knows the architecture",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="device that runs the model")
    max_model_len: int | None = Field(
        None, ge=2, description="maximum tokens in a sequence; default: the model's limit"
    )
    kv_cache_memory: ByteSize | None = Field(
        None,
        description="KV cache memory, e.g. 2GiB or 500MB; default: 2GiB, on a GPU what --gpu-memory-utilization leaves",
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "int8"] = Field(
        "auto", description="data type of the KV cache, on a CPU; auto: --dtype"
    )
    block_size: int | None = Field(
        None, ge=8, description="tokens per KV cache block, a multiple of 8; default: 64, on a GPU 16"
    )
    prefix_caching: bool = Field(True, description="reuse the KV cache for prompts with a common prefix")
    max_num_batched_tokens: int = Field(512, ge=32, description="maximum tokens in one forward pass")
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores this process may use")
    compute_lock_file: Annotated[str, AfterValidator(os.path.expanduser)] | None = Field(
        None, description="lock file that lets model servers on the same cores compute one at a time; default: no lock"
    )
    batch_delay: bool = Field(True, description="wait for a fuller batch if that shortens the total wait")
    gpu_memory_utilization: float = Field(
        0.45, gt=0, le=1, description="fraction of the GPU's memory that this server may use"
    )
    cuda_graph_max_tokens: int = Field(
        512,
        ge=1,
        le=512,
        description="on a GPU: maximum tokens in a step that runs as a CUDA graph; fewer start up faster",
    )
    batch_invariant: bool = Field(
        False, description="on a GPU: batch-invariant results, as on a CPU, at some cost in speed"
    )

    @field_validator("block_size")
    @classmethod
    def _is_multiple_of_8(cls, value: int | None) -> int | None:
        if value is not None and value % 8:
            raise ValueError("must be a multiple of 8")
        return value

    @property
    def keeps_blocks(self) -> bool:
        """Whether a GGUF file's matrices stay quantized in their blocks."""
        return self.device == "cpu" and self.dtype == "bfloat16" and self.quantization != "none"

    @property
    def kv_dtype(self) -> str:
        """The KV cache's data type: float32, bfloat16 or int8."""
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    def is_batch_invariant(self, role: ModelRole) -> bool:
        """Whether a model of this role must give each token the same bits in any batch."""
        return role.batch_invariant and (self.device == "cpu" or self.batch_invariant)
