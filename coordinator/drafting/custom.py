"""Custom drafters: loads a drafter that the command line names (see docs/drafting.md)."""

import importlib
from collections.abc import Callable

from coordinator.context import Request
from coordinator.drafting import Drafter
from paceline.errors import ConfigError


def load_drafter(path: str) -> Callable[[Request], Drafter]:
    """Loads the factory at `path`, "package.module:factory". A call for each request returns the request's drafter.

    Raises ConfigError, which names --custom-drafter and says what is wrong.
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
