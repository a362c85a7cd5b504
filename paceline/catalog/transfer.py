"""Downloads over HTTP that continue where an earlier one ended."""

import contextlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import paceline
from paceline.errors import ConfigError, Unavailable

# Timeout for connecting and for each read.
TIMEOUT_S = 20.0
CHUNK_BYTES = 1 << 20
# Tries in a row that bring nothing; between them it waits one second longer each time.
MAX_TRIES = 3
# Called with the number of bytes received so far and, if the server tells it, the total.
OnBytes = Callable[[int, int | None], None]


def download(
    url: str, file: Path, max_bytes: int, on_bytes: OnBytes, headers: Mapping[str, str], context: ssl.SSLContext
) -> None:
    """Appends to `file` what the URL has after it. A server that knows no ranges sends all, and the file starts anew.

    A connection that breaks is made again. Raises Unavailable if that brings nothing, with what came before kept in the
    file; ConfigError if the server has no such file, or sends more than `max_bytes` in all, with the file deleted; OSError
    if the file can't be written.
    """
    tries = 0
    while True:
        before = size_of(file)
        try:
            _append(url, file, max_bytes, on_bytes, headers, context)
            return
        except Unavailable:
            tries = 1 if size_of(file) > before else tries + 1
            if tries >= MAX_TRIES:
                raise
            time.sleep(tries)


def read(url: str, max_bytes: int, headers: Mapping[str, str], context: ssl.SSLContext) -> bytes:
    """Returns what the URL holds. Raises Unavailable, or ConfigError, also for more than `max_bytes`."""
    response = _open(url, headers, context)
    with response:
        return b"".join(_chunks(response, max_bytes))


def size_of(file: Path) -> int:
    """Returns a file's size in bytes, 0 if there is none."""
    return file.stat().st_size if file.exists() else 0


@contextlib.contextmanager
def naming(address: str) -> Iterator[None]:
    """Errors inside say which server they are about."""
    try:
        yield
    except (ConfigError, Unavailable) as error:
        raise type(error)(f"{address}: {error}") from error


def _append(
    url: str, file: Path, max_bytes: int, on_bytes: OnBytes, headers: Mapping[str, str], context: ssl.SSLContext
) -> None:
    start = size_of(file)
    wanted = {"Range": f"bytes={start}-"} if start else {}
    response = _open(url, {**headers, **wanted}, context)
    with response:
        if response.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing comes after what is here.
            return
        continues = response.status == http.client.PARTIAL_CONTENT
        position = start if continues else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else position + int(length)
        try:
            with file.open("ab" if continues else "wb") as opened:
                for chunk in _chunks(response, max_bytes - position):
                    opened.write(chunk)
                    position += len(chunk)
                    on_bytes(position, total)
        except ConfigError:
            file.unlink()
            raise
    if total is not None and position < total:
        raise Unavailable("the connection ended early")


def _open(url: str, headers: Mapping[str, str], context: ssl.SSLContext) -> Any:
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url)
    for name, value in {"User-Agent": f"paceline/{paceline.__version__}", **headers}.items():
        # A redirect leads to another host, which a password is not for.
        add = request.add_unredirected_header if name == "Authorization" else request.add_header
        add(name, value)
    try:
        return opener.open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return error
        with error:
            kind = Unavailable if error.code >= 500 or error.code == http.client.TOO_MANY_REQUESTS else ConfigError
            raise kind(f"HTTP {error.code} {error.reason} for {os.path.basename(url.rstrip('/'))}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(_said(error)) from error


def _chunks(response: Any, max_bytes: int) -> Iterator[bytes]:
    """Yields what the server sends. Raises ConfigError at the first byte beyond `max_bytes`."""
    try:
        while chunk := response.read(CHUNK_BYTES):
            max_bytes -= len(chunk)
            if max_bytes < 0:
                raise ConfigError("the server sends more bytes than it must")
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(_said(error)) from error


def _said(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
