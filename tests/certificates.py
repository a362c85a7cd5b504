"""Certificates for tests, made by openssl's command line as docs/server.md says."""

import shlex
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from paceline.rpc.tls import Tls

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
CA_CONFIG = """
[ca]
default_ca = own
[own]
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate, its key, and the authority's own certificate."""

    cert: Path
    key: Path
    ca: Path

    @property
    def tls(self) -> Tls:
        return Tls(str(self.cert), str(self.key), str(self.ca))

    def replace(self, other: "Issued") -> None:
        """Puts another's certificate and key into these files."""
        self.key.write_bytes(other.key.read_bytes())
        self.cert.write_bytes(other.cert.read_bytes())

    @property
    def key_lines(self) -> list[str]:
        """What nobody may find elsewhere."""
        return [line for line in self.key.read_text().splitlines() if line and not line.startswith("-")]


def made_as_documented(folder: Path) -> dict[str, Issued]:
    """Makes the certificates of services and a client by the commands in docs/server.md."""
    page = Path(__file__).parents[1] / "docs" / "server.md"
    commands = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("openssl ")]
    for command in commands:
        _openssl(*shlex.split(command)[1:], folder=folder)
    return {
        name: Issued(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem") for name in ("services", "me")
    }


class Authority:
    """One that issues certificates for loopback's names."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self.ca = folder / "ca.pem"
        _openssl("req", "-x509", *NEW_KEY, "-days", "2", "-subj", f"/CN={folder.name}", *self._to(folder / "ca"))

    def issue(self, name: str, names: str = NAMES) -> Issued:
        path = self._folder / name
        more = ("-addext", "basicConstraints=CA:FALSE", "-addext", names, "-days", "1")
        by = ("-CA", str(self.ca), "-CAkey", f"{self._folder}/ca.key")
        _openssl("req", "-x509", *by, *NEW_KEY, *more, "-subj", f"/CN={name}", *self._to(path))
        return Issued(path.with_suffix(".pem"), path.with_suffix(".key"), self.ca)

    def issue_expired(self, name: str) -> Issued:
        """One that was good in January of 2020."""
        path, config, request = self._folder / name, self._folder / "config", self._folder / "request"
        config.write_text(CA_CONFIG.format(folder=self._folder))
        (self._folder / "index").write_text("")
        (self._folder / "serial").write_text("01")
        key = f"{path}.key"
        _openssl(
            "req", "-new", *NEW_KEY, "-addext", NAMES, "-subj", f"/CN={name}", "-keyout", key, "-out", str(request)
        )
        _openssl(
            "ca", "-batch", "-config", str(config), "-cert", str(self.ca), "-keyfile", f"{self._folder}/ca.key",
            "-in", str(request), "-out", f"{path}.pem", "-startdate", "20200101000000Z", "-enddate", "20200131000000Z",
        )  # fmt: skip
        return Issued(Path(f"{path}.pem"), Path(key), self.ca)

    @staticmethod
    def _to(path: Path) -> tuple[str, ...]:
        return "-keyout", f"{path}.key", "-out", f"{path}.pem"


def _openssl(*arguments: str, folder: Path | None = None) -> None:
    ran = subprocess.run(("openssl", *arguments), capture_output=True, text=True, check=False, cwd=folder)
    assert ran.returncode == 0, ran.stderr


def name_at(address: str, tls: Tls, protocol: str = "h2") -> str:
    """Of the certificate that a new connection to HOST:PORT is shown. `protocol`: what the client wants to speak."""
    context = tls.client_context()
    context.set_alpn_protocols([protocol])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as raw, context.wrap_socket(raw, server_hostname=host) as it:
        certificate = it.getpeercert()
    assert certificate is not None
    return str(dict(pair for parts in certificate["subject"] for pair in parts)["commonName"])
