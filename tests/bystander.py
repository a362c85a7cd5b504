"""A generation that runs during a test and must give the same result as alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

ALONE: dict[tuple[str, str], list[int]] = {}
PLAIN = SpeculationParams(enabled=False)


@asynccontextmanager
async def undisturbed_bystander(
    address: str, prompt: list[int], sampling: SamplingParams, speculation: SpeculationParams | None = None
) -> AsyncIterator[None]:
    """Starts before the block and is read after it. Alone it runs once for each service, without speculation.

    `sampling` and `speculation` must be such that tokens depend on prompt, parameters and seed alone.
    """
    alone = address, f"{prompt} {sampling}"
    async with AsyncClient(address) as client:
        if alone not in ALONE:
            ALONE[alone] = (await client.complete(prompt, sampling, PLAIN)).token_ids
        beside, pieces = Completion(), client.stream(prompt, sampling, speculation)
        beside.add(await anext(pieces))
        yield
        async for chunk in pieces:
            beside.add(chunk)
    assert beside.token_ids == ALONE[alone]
