"""The embedded pair as three processes, for as long as a benchmark needs it."""

import contextlib
import tempfile
from collections.abc import AsyncIterator

from paceline.cli.services import Services
from paceline.cli.up import DEFAULT_DRAFT, DEFAULT_DRAFT_QUANTIZATION, DEFAULT_MODEL, make_deployment
from paceline.client import AsyncClient

MODEL, DRAFT = DEFAULT_MODEL, DEFAULT_DRAFT


@contextlib.asynccontextmanager
async def embedded_pair(*server_flags: str, draft: str = DRAFT) -> AsyncIterator[tuple[Services, AsyncClient]]:
    """The target in bfloat16, a draft in int8; `server_flags` for both."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        listen = f"unix:{folder}/coordinator.sock"
        deployment = make_deployment(
            listen, MODEL, draft, "bfloat16", DEFAULT_DRAFT_QUANTIZATION, list(server_flags), []
        )
        async with Services(deployment, lambda name, line: None) as services, AsyncClient(services.address) as client:
            yield services, client
