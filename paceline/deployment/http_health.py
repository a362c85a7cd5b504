"""`python -m paceline.deployment.http_health ADDRESS`: exit 0 if the gateway there lives. For container health checks.

PACELINE_TLS_CA, and PACELINE_TLS_CERT and _KEY where the gateway asks for a certificate, name files for one with TLS.
"""

import contextlib
import http.client
import json
import socket
import sys

from paceline.errors import ConfigError
from paceline.rpc.channel import NO_TLS
from paceline.rpc.tls import Tls, find_tls


def url_of(listen: str, has_tls: bool) -> str:
    """What a client calls: http://HOST:PORT or https://HOST:PORT, or the socket's address as it is."""
    return listen if listen.startswith("unix:") else f"http{'s' if has_tls else ''}://{listen}"


def instance_at(listen: str, timeout_s: float = 5.0, tls: Tls = NO_TLS) -> str | None:
    """The instance that the gateway at `listen` says it is; "" without a supervisor, None where no gateway answers."""
    try:
        connection = _connect(listen, timeout_s, tls)
    except (OSError, ConfigError):
        return None
    try:
        connection.request("GET", "/health", headers={"host": "localhost"})
        response = connection.getresponse()
        body = json.loads(response.read(1000))
        return str(body.get("instance", "")) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return None
    finally:
        connection.close()


def _connect(listen: str, timeout_s: float, tls: Tls) -> http.client.HTTPConnection:
    """Raises ConfigError for bad files, OSError for a socket without a gateway that speaks TLS."""
    context = tls.client_context() if tls else None
    if not listen.startswith("unix:"):
        if context is not None:
            return http.client.HTTPSConnection(listen, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(listen, timeout=timeout_s)
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(timeout_s)
    # Where the socket leads nowhere the request fails.
    with contextlib.suppress(OSError):
        connection.sock.connect(listen.removeprefix("unix:"))
    if context is not None:
        connection.sock = context.wrap_socket(connection.sock, server_hostname="localhost")
    return connection


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m paceline.deployment.http_health ADDRESS")
    sys.exit(0 if instance_at(sys.argv[1], tls=find_tls(None)) is not None else 1)
