"""`python -m paceline.rpc.health ADDRESS`: exit 0 if the server there says SERVING. For container health checks."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def is_serving(address: str, timeout_s: float = 5.0, service: str = "") -> bool:
    """Whether grpc.health.v1 at `address` answers SERVING within `timeout_s`, for all of it or for one service."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m paceline.rpc.health ADDRESS")
    sys.exit(0 if is_serving(sys.argv[1]) else 1)
