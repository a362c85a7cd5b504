"""API keys: whose key a caller has, and where a service may listen without keys.

A file of keys has one key a line, `NAME sha256:HEX`; blank lines and lines that begin with # count for nothing. A key
is 256 random bits, so a plain SHA-256 is the right hash: salts and slow hashes protect passwords, which people choose
and others guess. No key is ever part of a log line, a repr or an error.
"""

import fcntl
import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.checks import require
from paceline.errors import ConfigError, InvalidArgument

log = logging.getLogger(__name__)

# Where a client finds its key if nothing else gives it one.
ENVIRONMENT = "PACELINE_API_KEY"
KEY_BYTES = 32
# How often the file is looked at, at most.
LOOK_INTERVAL_S = 1.0

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(rb"([A-Za-z0-9._-]{1,64})[ \t]+sha256:([0-9A-Fa-f]{64})")
# What gRPC and HTTP carry in a header as it is.
_KEY = re.compile(r"[!-~]{1,512}")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the file."""

    name: str
    digest: bytes


class KeyRing:
    """The keys of one file. The file may change at any time: the ring follows it."""

    def __init__(self, path: str | Path) -> None:
        """Raises ConfigError that names the file, and the line where one is bad."""
        self._path = Path(path)
        self._looked_s = time.monotonic()
        # Taken before the file is read: a change in between is seen at the next look.
        self._seen, self._entries = _read(self._path)
        self._trouble: tuple[object, ...] = ()

    def __len__(self) -> int:
        return len(self._entries)

    def name_of(self, key: str | None) -> str | None:
        """The name of the key's owner; None if no line has this key.

        Compares with every line and never ends early: how long a refusal takes says nothing about any key.
        """
        if key is None:
            return None
        self._look()
        digest = _digest(key)
        owner = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                owner = entry.name
        return owner

    def _look(self) -> None:
        """Reads the file again if it has changed. Where that fails the keys stay, and the log says so once."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        try:
            if not self._trouble and _signature(self._path) == self._seen:
                return
            self._seen, self._entries = _read(self._path)
        except ConfigError as error:
            if error.args != self._trouble:
                log.warning("%s; the keys that were read before stay in force", error)
            self._trouble = error.args
            return
        self._trouble = ()
        log.info("%s has changed: %d API keys", self._path, len(self._entries))


def make_key(path: Path, name: str) -> str:
    """A new key, whose hash is appended to the file at `path`; a new file is its owner's alone (mode 0600).

    Raises InvalidArgument for a name that is none or is there already, ConfigError for a file that is bad or can't be
    written.
    """
    require(_NAME.fullmatch(name) is not None, "NAME", name, "1 to 64 of the characters A-Z a-z 0-9 . _ -")
    key = secrets.token_urlsafe(KEY_BYTES)
    try:
        with open(path, "a+b", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            # Two that make keys at the same time do not see each other's lines otherwise.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            if name in {entry.name for entry in _parse(path, content)}:
                raise InvalidArgument(
                    "NAME", f"is {name!r}, which {path} has already; give another, or delete its line"
                )
            unfinished = b"" if content.endswith(b"\n") or not content else b"\n"
            file.write(unfinished + f"{name} sha256:{_digest(key).hex()}\n".encode())
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror or error}") from error
    return key


def check_key(name: str, key: str) -> str:
    """Raises InvalidArgument that names the option `name`, but does not show the key."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidArgument(name, "must be 1 to 512 printable ASCII characters without spaces")
    return key


def find_key(key: str | None) -> str | None:
    """A client's key: `key`, or else the environment's; None if there is none. Raises InvalidArgument."""
    if key is not None:
        return check_key("key", key)
    found = os.environ.get(ENVIRONMENT, "").strip()
    return check_key(ENVIRONMENT, found) if found else None


def require_keys_or_loopback(listen: str, has_keys: bool, no_keys: bool, has_client_ca: bool) -> None:
    """Raises ConfigError for an address that other machines may reach, unless callers need keys or certificates, or
    nobody wants them to.

    `listen`: HOST:PORT or unix:PATH; `no_keys`: the explicit wish to serve everyone.
    """
    if has_keys and no_keys:
        raise ConfigError("--api-keys and --no-keys are given; give one of them")
    if has_keys or no_keys or has_client_ca or is_of_this_machine(listen):
        return
    raise ConfigError(
        f"--listen {listen} is open to other machines; give --api-keys FILE (`paceline key NAME --file FILE` makes a "
        "key), --tls-client-ca FILE to ask for certificates, or --no-keys to serve everyone who can reach it, or listen "
        "on 127.0.0.1"
    )


def is_of_this_machine(listen: str) -> bool:
    if listen.startswith("unix:"):
        return True
    return is_loopback(listen.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Of a name or an address; one of IPv6 may stand in brackets."""
    host = host.removeprefix("[").removesuffix("]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name: who knows which address it has tomorrow.
        return False


def _digest(key: str) -> bytes:
    # What came over HTTP may hold anything.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _signature(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced. Raises ConfigError if there is none."""
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"can't read the API keys in {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        # A pipe could be read once only, and reading might wait for ever.
        raise ConfigError(f"can't read the API keys in {path}: not a regular file")
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> tuple[tuple[int, int, int], tuple[_Entry, ...]]:
    """The file's signature before it was read, and its keys. Raises ConfigError."""
    signature = _signature(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read the API keys in {path}: {error.strerror or error}") from error
    return signature, _parse(path, content)


def _parse(path: Path, content: bytes) -> tuple[_Entry, ...]:
    """Raises ConfigError that names the line, but does not show it: somebody may have put a key there."""
    entries: list[_Entry] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            continue
        found = _LINE.fullmatch(stripped)
        if found is None:
            raise ConfigError(f"{path}, line {number}: it must be NAME sha256:HEX, with 64 hexadecimal digits")
        entry = _Entry(found[1].decode(), bytes.fromhex(found[2].decode()))
        for other in entries:
            if entry.name == other.name or entry.digest == other.digest:
                same = "name" if entry.name == other.name else "key"
                raise ConfigError(f"{path}, line {number}: a line above it has the same {same}")
        entries.append(entry)
    return tuple(entries)
