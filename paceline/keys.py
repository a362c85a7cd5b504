"""API keys: key files, and which addresses need them.

A file has one key per line, `NAME sha256:HEX`, perhaps with ` weight=NUMBER` after it, plus blank lines and # comments. A key is 256 random bits, so a plain
SHA-256 is enough; salts and slow hashes protect guessable passwords. Logs, reprs and errors never contain a key.
"""

import fcntl
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline.checks import require
from paceline.errors import ConfigError, InvalidArgument
from paceline.reloaded import Reloaded, Signature, signature_of

# The variable that holds a client's key.
ENVIRONMENT = "PACELINE_API_KEY"
KEY_BYTES = 32

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(rb"([A-Za-z0-9._-]{1,64})[ \t]+sha256:([0-9A-Fa-f]{64})(?:[ \t]+weight=(\S+))?")
_WEIGHT = re.compile(rb"\d{1,4}(?:\.\d{1,4})?")
MIN_WEIGHT, MAX_WEIGHT = 0.01, 1000.0
# Domains that public DNS does not have. Kubernetes uses svc and cluster.local.
_PRIVATE_DOMAINS = (".home.arpa", ".internal", ".lan", ".local", ".localhost", ".svc", ".test")
# What a header of gRPC and HTTP can carry unencoded.
_KEY = re.compile(r"[!-~]{1,512}")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    digest: bytes
    weight: float = 1.0


class KeyRing:
    """The keys of one file, reloaded when it changes; while it can't be, the previous keys stay."""

    def __init__(self, path: str | Path) -> None:
        """Raises ConfigError naming the file, and the line if one is bad."""
        self._file = Reloaded(partial(_signature, Path(path)), partial(_read, Path(path)), f"keys of {path}")
        self._weights = _weights(self._file.value)

    def __len__(self) -> int:
        return len(self._file.value)

    def name_of(self, key: str | None) -> str | None:
        """Returns the key's owner. Compares with every line, so that timing reveals nothing about any key."""
        if key is None:
            return None
        if (entries := self._file.newer()) is not None:
            self._weights = _weights(entries)
        digest = _digest(key)
        owner = None
        for entry in self._file.value:
            if hmac.compare_digest(entry.digest, digest):
                owner = entry.name
        return owner

    def weight_of(self, name: str | None) -> float:
        """Returns a key's share among those that wait for the same; 1 if the file names none, or no such key."""
        return self._weights.get(name, 1.0)


def make_key(path: Path, name: str) -> str:
    """Makes a key and appends its hash to the file; a new file gets mode 0600.

    Raises InvalidArgument for a bad or duplicate name, ConfigError for a file that is bad or can't be written.
    """
    require(_NAME.fullmatch(name) is not None, "NAME", name, "1 to 64 of the characters A-Z a-z 0-9 . _ -")
    key = secrets.token_urlsafe(KEY_BYTES)
    try:
        with open(path, "a+b", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            # Another process may be making a key.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            if name in {entry.name for entry in _parse(path, content)}:
                raise InvalidArgument(
                    "NAME", f"is {name!r}, which is already in {path}; choose another, or delete its line"
                )
            unfinished = b"" if content.endswith(b"\n") or not content else b"\n"
            file.write(unfinished + f"{name} sha256:{_digest(key).hex()}\n".encode())
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror or error}") from error
    return key


def check_key(name: str, key: str) -> str:
    """Raises InvalidArgument naming the option `name`, without showing the key."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidArgument(name, "must be 1 to 512 printable ASCII characters without spaces")
    return key


def find_key(key: str | None) -> str | None:
    """Returns `key`, or else the environment's. Raises InvalidArgument."""
    if key is not None:
        return check_key("key", key)
    found = os.environ.get(ENVIRONMENT, "").strip()
    return check_key(ENVIRONMENT, found) if found else None


def private_salt(owner: str, salt: str) -> str:
    """Returns a `cache_salt` that no other key's requests have."""
    return hashlib.sha256(f"{owner}\0{salt}".encode()).hexdigest()


def require_keys_or_loopback(listen: str, has_keys: bool, no_keys: bool, has_client_ca: bool) -> None:
    """Raises ConfigError for an address that other machines can reach, unless callers need keys or certificates."""
    if has_keys and no_keys:
        raise ConfigError("--api-keys and --no-keys are given; give one of them")
    if has_keys or no_keys or has_client_ca or is_of_this_machine(listen):
        return
    raise ConfigError(
        f"--listen {listen} is open to other machines; add --api-keys FILE (`paceline key NAME --file FILE` makes a "
        "key), --tls-client-ca FILE to require certificates, or --no-keys to serve everyone, or listen on 127.0.0.1"
    )


def is_of_this_machine(listen: str) -> bool:
    if listen.startswith("unix:"):
        return True
    return is_loopback(listen.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """Whether a host name or address (IPv6 with or without brackets) is loopback."""
    host = host.removeprefix("[").removesuffix("]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name may resolve to anything.
        return False


def is_private_name(host: str) -> bool:
    """Whether a host is an address, or a name that nobody can register, such as a service's or a container's.

    Any other name may be that of a page whose owner lets it resolve to an address here (DNS rebinding).
    """
    name = host.lower().removesuffix(".").removeprefix("[").removesuffix("]")
    if "." not in name or name.endswith(_PRIVATE_DOMAINS):
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(key: str) -> bytes:
    # HTTP headers may hold anything.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _weights(entries: tuple[_Entry, ...]) -> dict[str | None, float]:
    return {entry.name: entry.weight for entry in entries}


def _signature(path: Path) -> Signature:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"can't read the API keys in {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        # A pipe can be read once only, and may block.
        raise ConfigError(f"can't read the API keys in {path}: not a regular file")
    return signature_of(found)


def _read(path: Path) -> tuple[_Entry, ...]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"can't read the API keys in {path}: {error.strerror or error}") from error
    return _parse(path, content)


def _parse(path: Path, content: bytes) -> tuple[_Entry, ...]:
    """Raises ConfigError naming the line without showing it: it may contain a key."""
    entries: list[_Entry] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            continue
        found = _LINE.fullmatch(stripped)
        if found is None:
            raise ConfigError(
                f"{path}, line {number}: it must be NAME sha256:HEX, with 64 hexadecimal digits, or NAME sha256:HEX weight=NUMBER"
            )
        weight = 1.0 if found[3] is None else float(found[3]) if _WEIGHT.fullmatch(found[3]) else 0.0
        if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            raise ConfigError(f"{path}, line {number}: weight must be a number in [{MIN_WEIGHT:g}, {MAX_WEIGHT:g}]")
        entry = _Entry(found[1].decode(), bytes.fromhex(found[2].decode()), weight)
        for other in entries:
            if entry.name == other.name or entry.digest == other.digest:
                same = "name" if entry.name == other.name else "key"
                raise ConfigError(f"{path}, line {number}: a line above it has the same {same}")
        entries.append(entry)
    return tuple(entries)
