"""A part of the campaign (`python -m tests.hostile.clients`)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.hostile.bystander import bystander
from tests.hostile.clients import CASES, attack
from tests.hostile.deployment import Deployment, deployed
from tests.telling import Tell

pytestmark = pytest.mark.slow

NUM_CLIENTS = 4
# Beyond what four bodies of 8 MiB take while they are read and parsed.
MAX_GROWN_BYTES = 512 << 20


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path) as deployment:
        yield deployment


async def test_no_hostile_client_ends_a_service_or_disturbs_a_bystander(deployment: Deployment, tell: Tell) -> None:
    async with bystander(deployment.url) as beside:
        for name, case in CASES.items():
            report = await attack(deployment, beside, name, case, NUM_CLIENTS)
            assert report.dead == {}, report
            assert report.bystander.faults == [], report
            assert report.bystander.num_texts >= 2
            assert "no end" not in report.statuses, report
            assert report.grown_bytes("gateway") < MAX_GROWN_BYTES, report
    tell(f"clients: {len(CASES)} cases")
