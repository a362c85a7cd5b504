"""Custom drafters: runs a drafter that --custom-drafter names (see docs/drafting.md)."""

import importlib
from collections.abc import Callable

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, ModelDrafter, Resources
from coordinator.reports import DraftedBy
from paceline.errors import ConfigError


class CustomDrafter(ModelDrafter):
    """Adapts a plain `Drafter` to the adaptive policy."""

    name = DraftedBy.CUSTOM
    has_confidence = False

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    async def propose(self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0) -> Proposal:
        return await self._drafter.propose(context, num_draft_tokens)

    def truncate(self, length: int) -> None:
        self._drafter.truncate(length)

    def release(self) -> None:
        self._drafter.release()


def load_drafter(path: str) -> Callable[[Request], Drafter]:
    """Loads the factory at `path`, "package.module:factory", which makes a drafter for each request.

    Raises ConfigError naming --custom-drafter and the reason.
    """
    module_name, colon, factory_name = path.partition(":")
    if not (module_name and colon and factory_name):
        raise _error(path, "it must be PACKAGE.MODULE:FACTORY")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs the module: it may raise anything
        raise _error(path, f"importing {module_name} raised {type(error).__name__}: {error}") from error
    if not hasattr(module, factory_name):
        raise _error(path, f"module {module_name} has no {factory_name!r}")
    factory: Callable[[Request], Drafter] = getattr(module, factory_name)
    if not callable(factory):
        raise _error(path, f"{factory_name!r} is of type {type(factory).__name__}, which can't be called")
    return factory


def _error(path: str, wrong: str) -> ConfigError:
    return ConfigError(f"--custom-drafter {path!r}: {wrong}")


def _make(resources: Resources, request: Request) -> CustomDrafter:
    assert resources.custom is not None, "requests for it are refused without one"
    return CustomDrafter(resources.custom(request))


FACTORY = Factory(
    _make,
    lambda resources, request: DrafterSet(model=_make(resources, request)),
    missing=lambda resources: "" if resources.custom is not None else "this coordinator has no --custom-drafter",
)
