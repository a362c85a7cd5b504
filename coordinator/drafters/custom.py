"""Loads drafters given by --custom-drafter (docs/speculation.md)."""

import importlib
from collections.abc import Callable

from coordinator.drafters.drafter import Drafter, Factory, Resources
from coordinator.request import Request
from paceline.errors import ConfigError


def load_drafter(path: str) -> Callable[[Request], Drafter]:
    """Loads "package.module:factory". Raises ConfigError."""
    module_name, colon, factory_name = path.partition(":")
    if not (module_name and colon and factory_name):
        raise _error(path, "it must be PACKAGE.MODULE:FACTORY")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # user code
        raise _error(path, f"importing {module_name} raised {type(error).__name__}: {error}") from error
    if not hasattr(module, factory_name):
        raise _error(path, f"module {module_name} has no {factory_name!r}")
    factory: Callable[[Request], Drafter] = getattr(module, factory_name)
    if not callable(factory):
        raise _error(path, f"{factory_name!r} is of type {type(factory).__name__}, which can't be called")
    return factory


def _error(path: str, wrong: str) -> ConfigError:
    return ConfigError(f"--custom-drafter {path!r}: {wrong}")


def _make(resources: Resources, request: Request) -> Drafter:
    assert resources.custom is not None, "requests for it are refused without --custom-drafter"
    return resources.custom(request)


def _missing(resources: Resources) -> str:
    return "" if resources.custom is not None else "this coordinator has no --custom-drafter"


FACTORY = Factory(_make, missing=_missing)
