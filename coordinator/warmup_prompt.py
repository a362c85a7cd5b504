"""Keeps a prompt in the target's cache across restarts: a coding agent's first takes minutes to read.

The first prompt with tools is recorded in a file. Whenever a target comes up, the file's prompt is read before anybody
waits for it.
"""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from coordinator.remote.pool import Endpoint, Pool
from coordinator.request import Request
from paceline.errors import ConfigError, PacelineError
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

log = logging.getLogger(__name__)
# Interval at which the target's connection is looked at.
INTERVAL_S = 0.5
# Pause after a failed read: the target may be busy.
RETRY_S = 10.0


class WarmupPrompt:
    def __init__(self, path: Path, model: str, vocab_size: int, max_length: int) -> None:
        """Raises ConfigError for a file that holds something else."""
        self._path = path
        self._model = model
        self._request = _read(path, model, vocab_size, max_length)
        self._writing: asyncio.Task[None] | None = None

    def record(self, request: Request) -> None:
        """Records the first request with tools, if there is no file yet."""
        if self._request is not None or request.tools is None:
            return
        self._request = _only_read(request.prompt, request.cache_salt, request.vocab_size, request.max_length)
        content = {"model": self._model, "cache_salt": request.cache_salt, "token_ids": request.prompt}
        self._writing = asyncio.create_task(asyncio.to_thread(_write, self._path, json.dumps(content)))

    async def keep(self, targets: Pool, read: Callable[[Request, Endpoint], Awaitable[None]]) -> None:
        """Reads the prompt each time a target has come up. `read`: into that target's cache."""
        # Epoch of each endpoint's last read. Weak keys: endpoints that leave the list are forgotten.
        epochs: WeakKeyDictionary[Endpoint, int] = WeakKeyDictionary()
        while True:
            for endpoint in list(targets.endpoints) if self._request is not None else ():
                if not endpoint.is_open or epochs.get(endpoint) == endpoint.link.epoch:
                    continue
                epoch = endpoint.link.epoch
                # What has just been recorded is cached.
                is_cached = endpoint not in epochs and self._writing is not None
                if is_cached or await self._read_into_cache(read, endpoint):
                    epochs[endpoint] = epoch
            await asyncio.sleep(INTERVAL_S)

    async def _read_into_cache(self, read: Callable[[Request, Endpoint], Awaitable[None]], endpoint: Endpoint) -> bool:
        """Returns whether the prompt is cached now."""
        assert self._request is not None
        try:
            await read(self._request, endpoint)
        except PacelineError as error:
            log.warning("warm-up prompt: not read: %s", error)
            await asyncio.sleep(RETRY_S)
            return False
        log.info("warm-up prompt: %d tokens are cached", len(self._request.prompt))
        return True


def _read(path: Path, model: str, vocab_size: int, max_length: int) -> Request | None:
    """Returns None without a file, or with one of another model. Raises ConfigError."""
    try:
        content = json.loads(path.read_text())
        recorded, salt, ids = content["model"], content["cache_salt"], content["token_ids"]
        is_good = isinstance(salt, str) and bool(ids) and all(type(each) is int and each >= 0 for each in ids)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"warmup_prompt: {path} can't be read: {error!r}") from None
    if not is_good:
        raise ConfigError(f"warmup_prompt: {path} has no token ids")
    if recorded != model or max(ids) >= vocab_size or len(ids) > max_length:
        log.warning("warm-up prompt: %s is of another model, %.80s; it will be replaced", path, recorded)
        return None
    return _only_read(ids, salt, vocab_size, max_length)


def _only_read(prompt: list[int], cache_salt: str, vocab_size: int, max_length: int) -> Request:
    return Request(
        request_id="warm-up prompt",
        prompt=prompt,
        sampling=SamplingParams(max_tokens=0, seed=0),
        speculation=SpeculationParams(enabled=False),
        eos_token_ids=(),
        max_length=max_length,
        vocab_size=vocab_size,
        cache_salt=cache_salt,
    )


def _write(path: Path, content: str) -> None:
    """Replaces the file as a whole."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(content)
        partial.replace(path)
    except OSError as error:
        log.warning("warm-up prompt: %s can't be written: %s", path, error)
