"""A slice of the matrix (`python -m tests.faults` runs all of it), and what keeps its verify_results honest."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.faults.campaign import Campaign, Verdict
from tests.faults.cells import Cell, cells_like
from tests.faults.deployment import deployed
from tests.faults.faults import Fault, Scene
from tests.faults.loads import Asked, Undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
SLICE = (
    "kill/target/prefill/18",
    "kill/target/mid/1",
    "kill/draft/mid/18",
    "kill/coordinator/mid/18",
    "kill/gateway/between/18",
    "stop-5s/target/mid/18",
    "term/draft/between/1",
    "cut/link-target/mid/18",
    "cut/link-draft/prefill/1",
    "undecodable/link-target/mid/18",
    "unknown-kind/link-draft/mid/1",
    "other-weights/target/between/1",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def campaign(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Campaign]:
    async with deployed(tmp_path_factory.mktemp("faults")) as each:
        yield Campaign(*each, Undisturbed())


@pytest.mark.parametrize("name", SLICE)
async def test_a_fault_changes_no_output(name: str, campaign: Campaign) -> None:
    (cell,) = cells_like(name)
    report = await campaign.run(cell)
    assert report.verdict is Verdict.PASSED, report.line


class NobodyDrafts(Cell):
    """Of a generation for which the draft model never drafts."""

    @property
    def asked(self) -> list[Asked]:
        return [Asked(14, 6, 50)]


async def test_a_fault_that_never_falls_is_no_pass(campaign: Campaign) -> None:
    (cell,) = cells_like("cut/link-draft/mid/1")
    report = await campaign.run(NobodyDrafts(cell.number, cell.fault_name, cell.place, cell.phase, 1))
    assert report.verdict is Verdict.NOT_IN_PHASE, report.line


class Buggy(Fault):
    def strike(self, scene: Scene) -> None:
        raise LookupError("a bug of the fault's own")


class OfBuggy(Cell):
    @property
    def fault(self) -> Fault:
        return Buggy()


@pytest.mark.parametrize("name", ["cut/link-draft/mid/1", "cut/link-target/between/1"])
async def test_a_fault_that_raises_is_a_failure(name: str, campaign: Campaign) -> None:
    (cell,) = cells_like(name)
    campaign = Campaign(campaign.deployment, campaign.clients, Undisturbed())
    report = await campaign.run(OfBuggy(cell.number, cell.fault_name, cell.place, cell.phase, 1))
    assert report.verdict is Verdict.FAILED, report.line
    assert "a bug of the fault's own" in report.why


class OneTokenOff(Undisturbed):
    """As if a generation had lost its last token but one."""

    def of(self, asked: Asked) -> list[str]:
        words = super().of(asked)
        return [*words[:-2], words[-1]]


async def test_one_token_too_many_is_a_failure(campaign: Campaign) -> None:
    (cell,) = cells_like("cut/link-target/mid/1")
    report = await Campaign(campaign.deployment, campaign.clients, OneTokenOff()).run(cell)
    assert report.verdict is Verdict.FAILED
    assert "300 tokens of 299, the first 298 as without the fault" in report.why
