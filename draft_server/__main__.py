"""Runs one draft server: `python -m draft_server`."""

from dataclasses import replace

from draft_server.config import DraftSettings
from paceline.engine.engine_config import DRAFT_ROLE
from paceline.rpc.server import run
from paceline.serving.main import prepare_process, serve_model
from paceline.settings import parse_settings


def main() -> None:
    settings = parse_settings(DraftSettings, "draft_server")
    prepare_process()
    from draft_server.guessed_propose_job import draft_by_guesses
    from draft_server.parallel_propose_job import draft_by_masks
    from paceline.engine.engine import Engine
    from paceline.serving.job_kind import JobKind
    from paceline.serving.propose_job import Support
    from paceline.serving.proposing import Proposing

    def kinds(engine: Engine) -> list[JobKind]:
        support = Support(settings.support_size, settings.support_mass)
        by_masks = draft_by_masks(engine.num_masks, engine.model.vocab_size)
        return [Proposing(engine, support, by_masks, draft_by_guesses)]

    role = replace(DRAFT_ROLE, vocab_size=settings.vocab_size)
    run(lambda: serve_model(settings, role, kinds), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
