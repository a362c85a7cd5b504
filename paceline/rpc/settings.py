"""Settings of how processes speak with each other: TLS, toward clients and toward servers (docs/tls.md)."""

from collections.abc import Callable

from pydantic import Field, model_validator

from paceline.errors import ConfigError
from paceline.rpc.tls import Names, Tls
from paceline.settings import LocalPath, Settings

SERVER_FLAGS = Names("--tls-cert", "--tls-key", "--tls-client-ca")
CLIENT_FLAGS = Names("--servers-tls-cert", "--servers-tls-key", "--servers-tls-ca")


class TlsSettings(Settings):
    """Of a process that others call."""

    tls_cert: LocalPath | None = Field(
        None, description="serve by TLS with the certificate in this file (docs/tls.md); default: no TLS"
    )
    tls_key: LocalPath | None = Field(None, description="the certificate's key, in a file; default: none")
    tls_client_ca: LocalPath | None = Field(
        None, description="every client needs a certificate of the authority in this file; default: none needs one"
    )

    @model_validator(mode="after")
    def _has_good_certificates(self) -> "TlsSettings":
        _check(self.tls, self.tls.server_context)
        return self

    @property
    def tls(self) -> Tls:
        """With which it serves."""
        return Tls(self.tls_cert, self.tls_key, self.tls_client_ca, SERVER_FLAGS)


class GrpcSettings(TlsSettings):
    """Of a process that others call by gRPC."""

    reflection: bool = Field(False, description="tell callers which services and methods there are (gRPC reflection)")


class ServersTlsSettings(Settings):
    """Of a process that calls servers."""

    servers_tls_ca: LocalPath | None = Field(
        None, description="call servers by TLS; trust certificates of the authority in this file; default: no TLS"
    )
    servers_tls_cert: LocalPath | None = Field(
        None, description="the certificate to show to servers that ask for one, in a file; default: none"
    )
    servers_tls_key: LocalPath | None = Field(None, description="that certificate's key, in a file; default: none")

    @model_validator(mode="after")
    def _has_good_certificates_for_servers(self) -> "ServersTlsSettings":
        _check(self.servers_tls, self.servers_tls.client_context)
        return self

    @property
    def servers_tls(self) -> Tls:
        """With which it calls servers."""
        return Tls(self.servers_tls_cert, self.servers_tls_key, self.servers_tls_ca, CLIENT_FLAGS)


def _check(tls: Tls, load: Callable[[], object]) -> None:
    """pydantic expects a ValueError."""
    if not tls:
        return
    try:
        load()
    except ConfigError as error:
        raise ValueError(str(error)) from error
