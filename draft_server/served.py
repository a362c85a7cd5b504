"""Describes the draft model to `serve_models`, for its own process or the target server's."""

from dataclasses import replace
from typing import Any

from draft_server.config import DraftSettings
from paceline.engine.engine_config import DRAFT_ROLE
from paceline.serving.main import ServedModel


def draft_model(settings: DraftSettings) -> ServedModel:
    return ServedModel(
        settings, replace(DRAFT_ROLE, vocab_size=settings.vocab_size), lambda engine, _: _kinds(engine, settings)
    )


def _kinds(engine: Any, settings: DraftSettings) -> list[Any]:
    # They import torch, for which the process is to be prepared.
    from draft_server.guessed_propose_job import draft_by_guesses
    from draft_server.parallel_propose_job import draft_by_masks
    from paceline.serving.propose_job import Support
    from paceline.serving.proposing import Proposing

    support = Support(settings.support_size, settings.support_mass)
    by_masks = draft_by_masks(engine.num_masks, engine.model.vocab_size)
    return [Proposing(engine, support, by_masks, draft_by_guesses)]
