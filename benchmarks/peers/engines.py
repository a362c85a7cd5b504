"""The engines, their workers, and the modes of each."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers.subject import REAL, Subject
from benchmarks.peers.worker import ROOT

# Made by `make peers`; ignored by git.
FOLDER = ROOT / ".peers"
INSTALL = "make peers"
LLAMA_SERVER = FOLDER / "llama_cpp_native" / "bin" / "llama-server"
OPENVINO = FOLDER / "openvino" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Contender:
    """A row of the table: a worker in one mode."""

    name: str
    mode: str = "plain"
    # Answers one prompt at a time only.
    alone: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """A process to start, and its modes."""

    engine: str
    module: str
    python: Path
    contenders: tuple[Contender, ...]
    # What proposes, for engines that settle it when they start: "ngrams" or "model".
    drafter: str = ""
    # Whether it runs any GGUF file. The others run what was made of the real model, in a format of their own.
    reads_gguf: bool = False
    weights: str = "bf16"
    environment: dict[str, str] = field(default_factory=dict)
    # A program that it needs.
    program: Path | None = None

    @property
    def name(self) -> str:
        return self.contenders[0].name if len(self.contenders) == 1 else self.engine

    @property
    def is_installed(self) -> bool:
        return self.python.exists() and (self.program is None or self.program.exists())

    def suits(self, subject: Subject) -> bool:
        """Whether it runs the subject, or the model that its users have instead of a quantized file."""
        if self.drafter == "model" and not subject.draft_gguf_file:
            return False
        return self.reads_gguf or subject.has_folder or (self.weights == "int8" and subject.model == REAL)

    def only_plain(self) -> "WorkerPlan":
        """Returns the plan without speculation; possibly without contenders."""
        plain = tuple(each for each in self.contenders if each.mode == "plain" and not self.drafter)
        return replace(self, contenders=plain)


def plan_workers(engines: list[str], threads: int) -> list[WorkerPlan]:
    """Raises ValueError for an unknown name."""
    plans = _all_plans(threads)
    known = {plan.engine for plan in plans}
    if unknown := set(engines) - known:
        raise ValueError(f"no such engine: {', '.join(sorted(unknown))} (there are {', '.join(sorted(known))})")
    return [plan for engine in engines for plan in plans if plan.engine == engine]


def _all_plans(threads: int) -> list[WorkerPlan]:
    own = Path(sys.executable)
    llama_cpp = FOLDER / "llama_cpp" / "bin" / "python"
    vllm = FOLDER / "vllm" / "bin" / "python"
    # Each contender reads each prompt itself.
    own_environment = {"PACELINE_TARGET_PREFIX_CACHING": "false", "PACELINE_DRAFT_PREFIX_CACHING": "false"}
    vllm_environment = {
        # One process: nothing of it runs while it is stopped, and no answer crosses a socket.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    module = "benchmarks.peers.workers."
    return [
        WorkerPlan("paceline", module + "paceline", own, (
            Contender("paceline plain"),
            Contender("paceline model 4", "model"),
            Contender("paceline model adaptive", "adaptive"),
            Contender("paceline hybrid adaptive", "hybrid"),
            Contender("paceline n-gram 4", "ngrams"),
        ), reads_gguf=True, environment=own_environment),
        WorkerPlan("transformers", module + "transformers", own, (
            Contender("transformers plain"),
            Contender("transformers assisted", "model", alone=True),
            Contender("transformers prompt lookup 4", "ngrams", alone=True),
        )),
        WorkerPlan("llama.cpp", module + "llama_cpp", llama_cpp, (Contender("llama.cpp plain"),), reads_gguf=True),
        WorkerPlan("llama.cpp", module + "llama_cpp", llama_cpp, (Contender("llama.cpp n-gram-simple"),), "ngrams", True),
        *(
            WorkerPlan(
                "llama.cpp-native", module + "llama_server", own, (Contender(name),), drafter, reads_gguf=True,
                environment={"LLAMA_SERVER": str(LLAMA_SERVER), "LLAMA_ARG_FLASH_ATTN": flash}, program=LLAMA_SERVER,
            )
            # Its own choice is to use it: good for prompts, and bad for decoding on few cores.
            for name, drafter, flash in (
                ("llama.cpp native plain", "", "auto"),
                ("llama.cpp native, no flash", "", "off"),
                ("llama.cpp native n-gram-simple", "ngrams", "auto"),
                ("llama.cpp native model 3", "model", "auto"),
            )
        ),
        WorkerPlan("vllm", module + "vllm", vllm, (Contender("vllm plain"),), environment=vllm_environment),
        WorkerPlan("vllm", module + "vllm", vllm, (Contender("vllm n-gram 4"),), "ngrams", environment=vllm_environment),
        WorkerPlan("openvino", module + "openvino", OPENVINO, (Contender("openvino plain"),)),
        WorkerPlan("openvino", module + "openvino", OPENVINO, (Contender("openvino prompt lookup 4"),), "ngrams"),
        WorkerPlan("openvino", module + "openvino", OPENVINO, (Contender("openvino int8"),), weights="int8"),
        WorkerPlan(
            "openvino", module + "openvino", OPENVINO, (Contender("openvino gguf", alone=True),), reads_gguf=True,
            weights="gguf",
        ),
    ]  # fmt: skip
