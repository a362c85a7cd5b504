"""What an engine is told: settings that users may change, and what a model's role asks of it. No torch."""

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, field_validator


@dataclass(frozen=True, slots=True)
class ModelRole:
    """What a draft or a target needs of its engine, whatever its settings are."""

    name: str
    # Whether a row's bits must depend on its own sequence alone. Without that some products are faster; what a draft
    # proposes changes no output, so a draft can do without.
    batch_invariant: bool = True
    # On a GPU: most steps of a job that run in one go (see `Job.multi_step_specs`).
    multi_steps: int = 0
    # Token ids that the head knows from the first on, besides those of a context; 0: all, None: the device's default.
    vocab_size: int | None = 0


TARGET_ROLE = ModelRole("target")
# Of eight tokens, as many as adaptive k drafts at most, one is sampled by the step that reads the tail.
DRAFT_ROLE = ModelRole("draft", batch_invariant=False, multi_steps=7, vocab_size=None)


class EngineConfig(BaseModel):
    """Settings of one model's engine, each declared here and nowhere else; frozen, so that nobody changes them later."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(
        "smollm2-135m", description="hub id, folder, GGUF file, smollm2-135m, or dummy:NAME for random weights"
    )
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="data type of weights and activations")
    quantization: Literal["auto", "none", "int8", "int4"] = Field(
        "auto",
        description="auto keeps what a GGUF file has quantised (on a CPU, with bfloat16); none makes it numbers of the dtype; int8 or int4 also quantises everything else",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="where the model runs")
    max_model_len: int | None = Field(
        None, ge=2, description="most tokens in a sequence; default: the model's own limit"
    )
    kv_cache_memory: ByteSize | None = Field(
        None, description="memory for keys and values, e.g. 2GiB or 500MB; default: 2GiB, or what a GPU's share leaves"
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "int8"] = Field(
        "auto", description="data type of keys and values, on a CPU; auto: the model's"
    )
    block_size: int | None = Field(
        None, ge=8, description="tokens in a KV cache block, a multiple of 8; default: 64, on a GPU 16"
    )
    prefix_caching: bool = Field(True, description="keep keys and values for prompts that begin alike")
    max_num_batched_tokens: int = Field(512, ge=32, description="most rows (tokens) in one forward")
    threads: int | None = Field(None, ge=1, description="CPU threads; default: all cores this process may use")
    compute_lock_file: Annotated[str, AfterValidator(os.path.expanduser)] | None = Field(
        None, description="lock file of model servers on the same cores: one computes at a time; default: no lock"
    )
    waiting: bool = Field(True, description="wait for a fuller batch where that pays")
    gpu_memory_utilization: float = Field(0.45, gt=0, le=1, description="share of a GPU's memory this server may take")
    cuda_graph_max_tokens: int = Field(
        256, ge=1, le=256, description="on a GPU: most rows of a step that runs as one graph; fewer start sooner"
    )
    deterministic: bool = Field(
        False, description="on a GPU: the same bits in any batch, as a CPU always has, at some cost in speed"
    )

    @field_validator("block_size")
    @classmethod
    def _is_multiple_of_8(cls, value: int | None) -> int | None:
        if value is not None and value % 8:
            raise ValueError("must be a multiple of 8")
        return value

    @property
    def keeps_blocks(self) -> bool:
        """Whether matrices of a GGUF file stay in its blocks."""
        return self.device == "cpu" and self.dtype == "bfloat16" and self.quantization != "none"

    @property
    def kv_dtype(self) -> str:
        """What keys and values are kept in: float32, bfloat16 or int8."""
        return self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype

    def is_batch_invariant(self, role: ModelRole) -> bool:
        """Whether a model of this role must give each row the same bits in any batch."""
        return role.batch_invariant and (self.device == "cpu" or self.deterministic)
