"""The embedded pair as three processes, for as long as a benchmark needs it."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from draft_server.config import DraftSettings
from paceline.client import AsyncClient
from paceline.deployment.deployment import make_deployment
from paceline.deployment.services import Services
from target_server.config import TargetSettings

MODEL: str = TargetSettings.model_fields["model"].default
DRAFT: str = DraftSettings.model_fields["model"].default


@contextlib.asynccontextmanager
async def embedded_pair(draft: str = DRAFT, **servers: Any) -> AsyncIterator[tuple[Services, AsyncClient]]:
    """The default target, and `draft`; `servers`: settings of both model servers."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        listen = {"listen": f"unix:{folder}/coordinator.sock"}
        deployment = make_deployment(servers, {"model": draft, **servers}, listen)
        async with Services(deployment, lambda name, line: None) as services, AsyncClient(services.address) as client:
            yield services, client
