"""Runs one draft server: `python -m draft_server`."""

from draft_server.config import DraftSettings
from draft_server.served import draft_model
from paceline.rpc.server import run
from paceline.serving.main import serve_models
from paceline.settings import parse_settings


def main() -> None:
    settings = parse_settings(DraftSettings, "draft_server")
    run(lambda: serve_models([draft_model(settings)]), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
