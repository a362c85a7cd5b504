"""Runs one target server: `python -m target_server`, optionally with a draft server in the same process:

python -m target_server [options] draft_server [options]
"""

import sys
from dataclasses import replace
from typing import Any

from draft_server.config import DraftSettings
from draft_server.served import draft_model
from paceline.engine.engine_config import TARGET_ROLE
from paceline.rpc.server import run
from paceline.serving.main import ServedModel, serve_models
from paceline.serving.settings import SUPPORT_MASS, SUPPORT_SIZE
from paceline.settings import parse_settings
from target_server.config import TargetSettings


def main() -> None:
    arguments, of_draft = sys.argv[1:], None
    if "draft_server" in arguments:
        at = arguments.index("draft_server")
        arguments, of_draft = arguments[:at], arguments[at + 1 :]
    settings = parse_settings(TargetSettings, "target_server", arguments)
    role = replace(TARGET_ROLE, draft_head=settings.draft_head)
    models = [ServedModel(settings, role, _kinds)]
    if of_draft is not None:
        models.insert(0, draft_model(parse_settings(DraftSettings, "draft_server", of_draft)))
    run(lambda: serve_models(models), settings.log_format, settings.log_level)


def _kinds(engine: Any, draft: Any) -> list[Any]:
    """`draft`: servicer of the draft model in this process, if there is one."""
    # They import torch, for which the process is to be prepared.
    from paceline.serving.propose_job import Support
    from paceline.serving.proposing import Proposing
    from target_server.verifying import Verifying

    return [Verifying(engine, draft), Proposing(engine, Support(SUPPORT_SIZE, SUPPORT_MASS))]


if __name__ == "__main__":
    main()
