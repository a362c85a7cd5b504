"""TLS from PEM files, which may change while a process runs.

A server has a certificate and key, and for mutual TLS its clients' authority. A client has its servers' authority, and
for mutual TLS a certificate and key.
"""

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import grpc

from paceline.errors import ConfigError
from paceline.reloaded import Reloaded, Signature, signature_of

T = TypeVar("T")


class Names(NamedTuple):
    cert: str = "cert"
    key: str = "key"
    ca: str = "ca"


ENVIRONMENT = Names("PACELINE_TLS_CERT", "PACELINE_TLS_KEY", "PACELINE_TLS_CA")


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files; none: no TLS. Methods raise ConfigError naming a file that is missing or bad."""

    # The certificate, followed by intermediate ones, and its key without a passphrase.
    cert: str | Path | None = None
    key: str | Path | None = None
    # The authority of the other side's certificates.
    ca: str | Path | None = None
    names: Names = field(default=Names(), repr=False, compare=False)
    # Name that servers' certificates must have, instead of the address by which they are called.
    server_name: str | None = None

    def __bool__(self) -> bool:
        return bool(self._files)

    @property
    def said(self) -> str:
        return "mutual TLS" if self.ca is not None else "TLS" if self else "no TLS"

    def server_context(self) -> ssl.SSLContext:
        if self.cert is None:
            raise ConfigError(f"{self._given} needs {self.names.cert} and {self.names.key}")
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # No resumption: a resumed session is not checked again, even if the authority has changed.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        return context

    def client_context(self) -> ssl.SSLContext:
        if self.ca is None:
            raise ConfigError(f"{self._given} needs {self.names.ca}, the authority to trust")
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials that read the files anew for each connection."""
        configuration = self.reloaded(self._server_configuration)
        return grpc.dynamic_ssl_server_credentials(configuration.value, configuration.newer, self.ca is not None)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        self.client_context()
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))

    def reloaded(self, make: Callable[[], T]) -> Reloaded[T]:
        """Returns what `make` makes of the files, now and whenever they change."""
        return Reloaded(self._signatures, make, "certificates")

    def _signatures(self) -> list[Signature]:
        found = []
        for name, path in self._files:
            try:
                found.append(signature_of(os.stat(path)))
            except OSError as error:
                raise ConfigError(f"{name}: can't read {path}: {error.strerror or error}") from error
        return found

    @property
    def _files(self) -> list[tuple[str, str | Path]]:
        pairs = zip(self.names, (self.cert, self.key, self.ca), strict=True)
        return [(name, path) for name, path in pairs if path is not None]

    @property
    def _given(self) -> str:
        return " and ".join(name for name, _ in self._files) or "TLS"

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        self.server_context()
        return grpc.ssl_server_certificate_configuration([(_read(self.key), _read(self.cert))], _read(self.ca))

    def _context(self, protocol: int) -> ssl.SSLContext:
        """Loads all files, so that OpenSSL reports what is wrong with one."""
        if (self.cert is None) is not (self.key is None):
            raise ConfigError(f"{self.names.cert} and {self.names.key} need each other; give both")
        for name, path in self._files:
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(f"{name}: can't read {path}: {error.strerror or error}") from error
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:
                raise ConfigError(f"{self.names.ca}: {self.ca} holds no certificate in PEM form") from error
        if self.cert is not None:
            self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        assert self.cert is not None

        def refuse() -> str:
            raise ConfigError(f"{self.names.key}: {self.key} is protected by a passphrase; it must have none")

        try:
            context.load_cert_chain(self.cert, self.key, password=refuse)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                said = f"{self.key} does not fit the certificate in {self.names.cert}, {self.cert}"
                raise ConfigError(f"{self.names.key}: {said}") from error
            said = f"{self.cert} and {self.key} are not a certificate and its key in PEM form"
            raise ConfigError(f"{self.names.cert}, {self.names.key}: {said}") from error


def find_tls(tls: Tls | None) -> Tls:
    """Returns a client's files, by default the environment's."""
    if tls is not None:
        return tls
    cert, key, ca = (os.path.expanduser(os.environ.get(name, "")) or None for name in ENVIRONMENT)
    return Tls(cert, key, ca, ENVIRONMENT)


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
