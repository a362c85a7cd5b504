"""`python -m paceline.deployment.http_health ADDRESS`: exit 0 if the gateway there lives. For container health checks."""

import contextlib
import http.client
import json
import socket
import sys


def url_of(listen: str) -> str:
    """What a client calls: http://HOST:PORT, or the socket's address as it is."""
    return listen if listen.startswith("unix:") else f"http://{listen}"


def instance_at(listen: str, timeout_s: float = 5.0) -> str | None:
    """The instance that the gateway at `listen` says it is; "" without a supervisor, None where no gateway answers."""
    connection = _connect(listen, timeout_s)
    try:
        connection.request("GET", "/health", headers={"host": "localhost"})
        response = connection.getresponse()
        body = json.loads(response.read(1000))
        return str(body.get("instance", "")) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return None
    finally:
        connection.close()


def _connect(listen: str, timeout_s: float) -> http.client.HTTPConnection:
    if not listen.startswith("unix:"):
        return http.client.HTTPConnection(listen, timeout=timeout_s)
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(timeout_s)
    # Where the socket leads nowhere the request fails.
    with contextlib.suppress(OSError):
        connection.sock.connect(listen.removeprefix("unix:"))
    return connection


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m paceline.deployment.http_health ADDRESS")
    sys.exit(0 if instance_at(sys.argv[1]) is not None else 1)
