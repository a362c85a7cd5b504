"""Speculative decoding as services.

from paceline import Client, SamplingParams

with Client("127.0.0.1:50050") as client:
    print(client.complete("Why is the sky blue?", SamplingParams(max_tokens=64)).text)
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Imported when used: `import paceline` alone loads no grpc. __init__.pyi tells type checkers the same.
_MODULES = {
    "AsyncClient": "paceline.client",
    "Client": "paceline.client",
    "Infill": "paceline.infill_prompt",
    "OutputFormat": "paceline.output_format",
    "SamplingParams": "paceline.sampling_params",
    "SpeculationParams": "paceline.speculation_params",
    "Tls": "paceline.rpc.tls",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
