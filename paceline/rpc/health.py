"""Health checks for containers: `python -m paceline.rpc.health ADDRESS [SERVICE]` exits 0 if healthy.

ADDRESS is `http://ADDRESS` for a gateway. SERVICE is a gRPC health name; the default is the whole server, and `live` means
that the process runs. TLS files come from PACELINE_TLS_CA, PACELINE_TLS_CERT and PACELINE_TLS_KEY.
"""

import contextlib
import http.client
import json
import socket
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.errors import ConfigError, InvalidArgument
from paceline.rpc.channel import CLIENT_OPTIONS, NO_TLS, check_address, tls_options
from paceline.rpc.tls import Tls, find_tls

# Health name for liveness probes, which must not restart a process because of what it depends on, or while it drains.
LIVE = "live"


def is_serving(address: str, timeout_s: float = 5.0, service: str = "", tls: Tls = NO_TLS) -> bool:
    try:
        with _open(address, tls) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
    except (grpc.RpcError, ConfigError):
        return False


def instance_at(listen: str, timeout_s: float = 5.0, tls: Tls = NO_TLS) -> str | None:
    """Returns the instance name that a gateway reports; "" without a supervisor, None without a gateway."""
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


def _open(address: str, tls: Tls) -> grpc.Channel:
    if not tls:
        return grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.secure_channel(address, tls.channel_credentials(), options=tls_options(address, tls))


def _connect(listen: str, timeout_s: float, tls: Tls) -> http.client.HTTPConnection:
    context = tls.client_context() if tls else None
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    if listen.startswith("unix:"):
        host = "localhost"
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_s)
        # If the socket leads nowhere, the request fails.
        with contextlib.suppress(OSError):
            connection.sock.connect(listen.removeprefix("unix:"))
    else:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        connection.sock = socket.create_connection((host, int(port)), timeout_s)
    if context is not None:
        connection.sock = context.wrap_socket(connection.sock, server_hostname=tls.server_name or host)
    return connection


def main() -> None:
    given, service = [*sys.argv[1:], ""][:2] if len(sys.argv) in (2, 3) else ("", "")
    is_http = given.startswith(("http://", "https://"))
    if not given or (is_http and service):
        sys.exit("usage: python -m paceline.rpc.health ADDRESS [SERVICE] | http://ADDRESS")
    address = given.partition("://")[2] if is_http else given
    tls = find_tls(None)
    try:
        check_address("ADDRESS", address)
        if tls:
            tls.client_context()
    except (ConfigError, InvalidArgument) as error:
        sys.exit(f"error: {error}")
    is_healthy = instance_at(address, tls=tls) is not None if is_http else is_serving(address, service=service, tls=tls)
    sys.exit(0 if is_healthy else 1)


if __name__ == "__main__":
    main()
