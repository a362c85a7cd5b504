"""Runs one draft server: `python -m draft_server`."""

from dataclasses import replace

from draft_server.config import DraftSettings
from paceline.engine.config import DRAFT_ROLE
from paceline.rpc.server import run
from paceline.serving.main import prepare_process, serve_model
from paceline.settings import parse_settings
from paceline.v1 import draft_pb2


def main() -> None:
    settings = parse_settings(DraftSettings, "draft_server")
    prepare_process()
    from draft_server.drafter import Support
    from draft_server.servicer import DraftServicer
    from paceline.engine.engine import Engine

    support = Support(settings.support_size, settings.support_mass)
    descriptor = draft_pb2.DESCRIPTOR.services_by_name["Draft"]

    def make(engine: Engine) -> DraftServicer:
        return DraftServicer(engine, support)

    role = replace(DRAFT_ROLE, vocab_size=settings.vocab_size)
    run(lambda: serve_model(settings, role, descriptor, make), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
