"""The on-disk cache of compiled kernels."""

import functools
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache, UserProvidedCacheLocator

from paceline import noise
from paceline.cache_folder import cache_folder
from paceline.engine.models.gguf import blocks
from paceline.errors import ConfigError

log = logging.getLogger(__name__)

KERNELS = Path(__file__).parent / "kernels"
# Sources outside this folder that kernels inline.
COMPILED_IN = (Path(noise.__file__), Path(blocks.__file__))
# What the user sets (NUMBA_CACHE_DIR).
_GIVEN = config.CACHE_DIR  # type: ignore[attr-defined]


def keep(kernel: Any) -> Any:
    kernel._cache = KernelCache(kernel.py_func)
    return kernel


@functools.cache
def kernel_folder() -> Path:
    """Returns a folder in NUMBA_CACHE_DIR, next to the sources, or in `cache_folder`.

    Numba only watches a function's own file, so the name has a digest of all files that it may
    inline. It knows the processor, but not whether the system lets this process use the matrix unit, which is compiled in.
    Raises ConfigError for a user without a home.
    """
    digest = hashlib.blake2b(digest_size=8)
    for source in (*sorted(KERNELS.rglob("*.py")), *COMPILED_IN):
        digest.update(source.read_bytes())
    if torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx():
        digest.update(b"matrix unit")
    if _GIVEN:
        folder = Path(os.path.expanduser(_GIVEN))
    else:
        folder = KERNELS / "__pycache__" if os.access(KERNELS, os.W_OK) else cache_folder() / "kernels"
    return folder / digest.hexdigest()


class KernelCache(NullCache):
    """Loads and saves compiled functions. If that fails, logs it once and compiles."""

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
        except Exception as error:  # a disk error, or pickle's for a truncated file
            reason = getattr(error, "strerror", None) or error
            return _tell(f"can't use the kernel cache {folder}: {reason}; set NUMBA_CACHE_DIR to another folder")


class _Locator(UserProvidedCacheLocator):
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
    log.warning("compiling the kernels at every start, which takes minutes: %s", reason)
