"""The embedded pair as three processes, for as long as a benchmark needs it."""

import contextlib
import tempfile
from collections.abc import AsyncIterator

from paceline.cli.services import Services
from paceline.cli.up import make_deployment
from paceline.client import AsyncClient

MODEL = "smollm2-135m"


@contextlib.asynccontextmanager
async def embedded_pair(*server_flags: str) -> AsyncIterator[tuple[Services, AsyncClient]]:
    """The target in bfloat16, its own checkpoint in int8 as draft; `server_flags` for both."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        listen = f"unix:{folder}/coordinator.sock"
        deployment = make_deployment(listen, MODEL, MODEL, "bfloat16", "int8", list(server_flags), [])
        async with Services(deployment, lambda name, line: None) as services, AsyncClient(services.address) as client:
            yield services, client
