"""Runs one target server: `python -m target_server`."""

from paceline.engine.engine_config import TARGET_ROLE
from paceline.rpc.server import run
from paceline.serving.main import prepare_process, serve_model
from paceline.serving.settings import SUPPORT_MASS, SUPPORT_SIZE
from paceline.settings import parse_settings
from target_server.config import TargetSettings


def main() -> None:
    settings = parse_settings(TargetSettings, "target_server")
    prepare_process()
    from paceline.engine.engine import Engine
    from paceline.serving.job_kind import JobKind
    from paceline.serving.propose_job import Support
    from paceline.serving.proposing import Proposing
    from target_server.verifying import Verifying

    def kinds(engine: Engine) -> list[JobKind]:
        return [Verifying(engine), Proposing(engine, Support(SUPPORT_SIZE, SUPPORT_MASS))]

    run(lambda: serve_model(settings, TARGET_ROLE, kinds), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
