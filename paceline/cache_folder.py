"""The folder for what is made once and kept: converted models, and compiled kernels."""

import os
from pathlib import Path

from paceline.errors import ConfigError


def cache_folder() -> Path:
    """Returns PACELINE_CACHE_DIR, or else ~/.cache/paceline. Raises ConfigError for a user without a home."""
    given = os.environ.get("PACELINE_CACHE_DIR")
    try:
        return Path(given).expanduser() if given else Path.home() / ".cache" / "paceline"
    except RuntimeError as error:
        raise ConfigError(
            f"user id {os.getuid()} has no home folder; PACELINE_CACHE_DIR must name a folder for caches"
        ) from error
