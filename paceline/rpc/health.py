"""`python -m paceline.rpc.health ADDRESS`: exit 0 if the server there says SERVING. For container health checks.

PACELINE_TLS_CA, and PACELINE_TLS_CERT and _KEY where the server asks for a certificate, name files for a server with TLS.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.errors import ConfigError, InvalidArgument
from paceline.rpc.channel import CLIENT_OPTIONS, NO_TLS, check_address, tls_options
from paceline.rpc.tls import Tls, find_tls


def is_serving(address: str, timeout_s: float = 5.0, service: str = "", tls: Tls = NO_TLS) -> bool:
    """Whether grpc.health.v1 at `address` answers SERVING within `timeout_s`, for all of it or for one service."""
    try:
        with _open(address, tls) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
    except (grpc.RpcError, ConfigError):
        return False


def _open(address: str, tls: Tls) -> grpc.Channel:
    if not tls:
        return grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.secure_channel(address, tls.channel_credentials(), options=tls_options(address))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m paceline.rpc.health ADDRESS")
    tls = find_tls(None)
    try:
        check_address("ADDRESS", sys.argv[1])
        if tls:
            tls.client_context()
    except (ConfigError, InvalidArgument) as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if is_serving(sys.argv[1], tls=tls) else 1)


if __name__ == "__main__":
    main()
