"""Pools of servers that only say how they are."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

from coordinator.remote.placement import Placement
from coordinator.remote.pool import Endpoint, Pool
from coordinator.remote.server_load import ForwardTimes, ServerLoad
from paceline.rpc.address_source import AddressSource
from tests.coordinator.contexts import make_context

BLOCK = 4
# A second for each token read, and a second in any case.
TIMES = ForwardTimes([(1, 2.0), (2, 3.0)])
PROMPT = list(range(10))


def endpoint(name: str, model: str = "") -> Endpoint:
    link = SimpleNamespace(
        address=name, is_up=True, is_silent=False, is_refused=False, forward_times=TIMES, num_block_tokens=BLOCK,
        num_state_tokens=0, num_cache_tokens=1000, away_s=0.0, draft_head_times=None,
        load=ServerLoad(), want=lambda: None, absence=f"{name} is away", stop=AsyncMock(),
        model_info=SimpleNamespace(name=model) if model else None, translation=None, process="", epoch=0,
    )  # fmt: skip
    return Endpoint(cast(Any, link))


def pool_of(*names: str) -> Pool:
    pool = Pool("target", AddressSource("target", "one:1"), lambda address, model_info: None)
    pool.endpoints = [endpoint(name) for name in names]
    return pool


def placement(
    pool: Pool, tokens: list[int] = PROMPT, salt: str = "", num_new: int = 4, model: str = "", beams: int = 1
) -> Placement:
    request = make_context(tokens, num_new).request
    sampling = replace(request.sampling, beams=beams)
    return Placement(pool, replace(request, cache_salt=salt, sampling=sampling), tokens, model=model)


def read(pool: Pool) -> None:
    """A generation reads the prompt and ends."""
    here = placement(pool)
    here.num_fed = len(PROMPT)
    here.release()
