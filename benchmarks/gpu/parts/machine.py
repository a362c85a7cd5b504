"""The GPU, package versions, and the GPU's copy bandwidth."""

import importlib.metadata
import platform

import torch

from benchmarks.gpu.clock import gpu_seconds
from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results

PACKAGES = ("torch", "triton", "transformers", "numba", "numpy", "grpcio", "protobuf", "pydantic")
# More than any GPU's own cache.
COPY_BYTES = 4 << 30


def measure(options: Options, results: Results) -> None:
    properties = torch.cuda.get_device_properties(0)
    results.put(
        gpu=properties.name,
        memory_bytes=properties.total_memory,
        processors=properties.multi_processor_count,
        cuda=torch.version.cuda,
        python=platform.python_version(),
        versions={name: version_of(name) for name in PACKAGES},
    )
    bandwidth = copy_bandwidth()
    results.put(copy_bytes_per_s=bandwidth)
    print(f"{properties.name}, copy {bandwidth / 1e12:.2f} TB/s")


def copy_bandwidth() -> float:
    """Returns bytes per second, read and written, of a copy in GPU memory."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * COPY_BYTES / gpu_seconds(lambda: target.copy_(source), 20)


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
