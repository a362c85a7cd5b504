"""What the processor has, as far as the compiler may use it."""

import platform

import llvmlite.binding
from numba.core import config


def processor_features() -> frozenset[str]:
    """LLVM's names of the processor's features, or those that NUMBA_CPU_FEATURES names in their place."""
    present = frozenset(name for name, has in llvmlite.binding.get_host_cpu_features().items() if has)
    named: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    if named is None:
        return present
    return present & {each[1:] for each in named.split(",") if each.startswith("+")}


def has_features(*names: str) -> bool:
    """Whether an x86 processor has all of these."""
    return platform.machine() == "x86_64" and processor_features().issuperset(names)
