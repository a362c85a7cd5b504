"""Compiled kernels on disk: in which folder, and what happens if they can't be kept."""

import functools
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, UserProvidedCacheLocator

from paceline import noise
from paceline.cache_folder import cache_folder
from paceline.errors import ConfigError

log = logging.getLogger(__name__)

KERNELS = Path(__file__).parent / "kernels"
# Sources outside of this folder from which kernels take constants or functions: they are compiled in.
COMPILED_IN = (Path(noise.__file__),)
# What the user sets (NUMBA_CACHE_DIR).
_GIVEN = config.CACHE_DIR  # type: ignore[attr-defined]


def keep(kernel: Any) -> Any:
    """Lets a kernel be found on disk at its first call, or be kept there. Returns the kernel."""
    kernel._cache = KernelCache(kernel.py_func)
    return kernel


@functools.cache
def kernel_folder() -> Path:
    """Returns NUMBA_CACHE_DIR, or a folder beside the sources, or else in the cache folder; one for each state of the sources.

    Numba compiles a function again only if the function's own file changes. What it inlines may be in other files, so
    this folder's name depends on all of them. Raises ConfigError for a user without a home.
    """
    digest = hashlib.blake2b(digest_size=8)
    for source in (*sorted(KERNELS.rglob("*.py")), *COMPILED_IN):
        digest.update(source.read_bytes())
    if _GIVEN:
        folder = Path(os.path.expanduser(_GIVEN))
    else:
        folder = KERNELS / "__pycache__" if os.access(KERNELS, os.W_OK) else cache_folder() / "kernels"
    return folder / digest.hexdigest()


class KernelCache(NullCache):
    """Finds and keeps the compiled forms of a function. If it can't, the log says so once, and kernels are compiled."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._files: Any = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        return self._try(lambda files: files.load_overload(sig, target_context))

    def save_overload(self, sig: Any, data: Any) -> None:
        self._try(lambda files: files.save_overload(sig, data))

    def _try(self, use: Callable[[Any], Any]) -> Any:
        try:
            folder = kernel_folder()
        except ConfigError as error:
            return _tell(str(error))
        try:
            self._files = self._files or _Files(self._function)
            return use(self._files)
        except Exception as error:  # of the disk, or what pickle raises for a file that was cut off
            reason = getattr(error, "strerror", None) or error
            return _tell(f"they can't be kept in {folder}: {reason}; NUMBA_CACHE_DIR names another folder")


class _Locator(UserProvidedCacheLocator):
    """A folder inside `kernel_folder`, for a function's file. It may be one that can only be read."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> "_Locator":
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(kernel_folder() / self.get_suitable_cache_subpath(self._py_file))


class _Impl(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 - as in the base class


class _Files(FunctionCache):
    _impl_class = _Impl


@functools.cache
def _tell(reason: str) -> None:
    """Says it once."""
    log.warning("each start compiles the kernels, for minutes: %s", reason)
