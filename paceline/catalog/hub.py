"""A published file from the hub."""

import ssl
from pathlib import Path

from paceline.catalog.table import PublishedFile
from paceline.catalog.transfer import OnBytes, download, naming
from paceline.errors import ConfigError, Unavailable

# A hub that can't be reached must not hold up the other source.
TIMEOUT_S = 5.0


def fetch_from_hub(model: PublishedFile, partial: Path, on_bytes: OnBytes) -> None:
    """Appends to `partial` what it lacks. Raises Unavailable or ConfigError; OSError if the file can't be written."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    with naming(constants.ENDPOINT):
        if constants.is_offline_mode():
            raise Unavailable("HF_HUB_OFFLINE is set")
        try:
            url = hf_hub_url(model.repository, model.file, revision=model.revision)
            found = get_hf_file_metadata(url, timeout=TIMEOUT_S)
        except Exception as error:  # huggingface_hub raises a dozen unrelated types for "not there"
            raise Unavailable(next(iter(str(error).splitlines()), "") or type(error).__name__) from error
        if found.size not in (None, model.size_bytes):
            raise ConfigError(f"{model.file} has {found.size} bytes there; it must have {model.size_bytes}")
        download(found.location, partial, on_bytes, {}, ssl.create_default_context())
