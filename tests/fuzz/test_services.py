"""A part of the campaign (`python -m tests.fuzz`) to each gRPC service."""

import pytest

from tests.fuzz.__main__ import SERVICES, flags, run
from tests.hosted import Host
from tests.services import Trio
from tests.telling import Tell

pytestmark = pytest.mark.slow

NUM_MESSAGES = 1000

SEED = 1


@pytest.fixture(scope="module")
def trio(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Trio:
    of_model = flags(tmp_path_factory.mktemp("fuzz"))
    return host.trio(of_model, of_model)


@pytest.mark.parametrize("name", SERVICES)
async def test_no_message_breaks_a_door_or_disturbs_a_bystander(name: str, trio: Trio, tell: Tell) -> None:
    report = await run(name, trio, NUM_MESSAGES, SEED)
    tell(f"fuzz, {name}: {report.seen.num_messages} messages, {len(report.violations)} violations")
    assert report.violations == []
    assert report.seen.num_messages >= NUM_MESSAGES
    # Both kinds come: a test of refusals alone would say nothing of what lies behind the service.
    statuses = {status for _, status in report.seen.statuses}
    assert {"OK", "INVALID_ARGUMENT"} <= statuses, report.seen.statuses
