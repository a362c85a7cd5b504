"""Runs one target server: `python -m target_server`."""

from paceline.engine.config import TARGET_ROLE
from paceline.rpc.server import run
from paceline.serving.main import prepare_process, serve_model
from paceline.settings import parse_settings
from paceline.v1 import target_pb2
from target_server.config import TargetSettings


def main() -> None:
    settings = parse_settings(TargetSettings, "target_server")
    prepare_process()
    from target_server.servicer import TargetServicer

    descriptor = target_pb2.DESCRIPTOR.services_by_name["Target"]
    run(lambda: serve_model(settings, TARGET_ROLE, descriptor, TargetServicer), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
