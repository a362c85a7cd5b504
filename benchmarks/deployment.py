"""The embedded pair as three processes."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

from draft_server.config import DraftSettings
from paceline.cli.services import Services
from paceline.cli.stack import make_stack
from paceline.client import AsyncClient
from target_server.config import TargetSettings

MODEL: str = TargetSettings.model_fields["model"].default
DRAFT: str = DraftSettings.model_fields["model"].default


@contextlib.asynccontextmanager
async def embedded_pair(
    draft: str = DRAFT,
    remembers: bool = True,
    coordinator_settings: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
    num_targets: int = 1,
    colocates_draft: bool = True,
    **servers: Any,
) -> AsyncIterator[tuple[Services, AsyncClient]]:
    """Runs the default target, and `draft`, which may be "none".

    `colocates_draft`: as in `make_stack`; `coordinator_settings`: settings of the coordinator; `target`: of the target server; `servers`: of both model servers; `remembers`:
    draft from recent responses, which would distort benchmarks that repeat prompts.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        coordinator: dict[str, Any] = {**(coordinator_settings or {}), "listen": f"unix:{folder}/coordinator.sock"}
        if not remembers:
            coordinator["suffix_cache_tokens"] = 0
        deployment = make_stack(
            {**servers, **(target or {})},
            {"model": draft, **servers},
            coordinator,
            num_targets=num_targets,
            colocates_draft=colocates_draft,
        )
        async with Services(deployment, lambda name, line: None) as services, AsyncClient(services.address) as client:
            yield services, client
