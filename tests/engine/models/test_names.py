"""Which model a name means: a file is a GGUF file by its content, `~` is the user's home."""

from pathlib import Path

import pytest
import torch

from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.engine.models.gguf_files import tiny
from tests.model_folder import write_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PACELINE_CACHE_DIR", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["tiny.gguf", "TINY.GGUF", "sha256-0123", "tiny.gguf.download"])
def test_a_file_is_a_gguf_file_by_its_content(home: Path, name: str) -> None:
    path = tiny(home).rename(home / name)
    in_place = load_model(str(path), torch.bfloat16, in_place=True)
    converted = load_model(str(path), torch.bfloat16)
    assert in_place.tensors.keys() == converted.tensors.keys()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf", "model"])
def test_another_file_is_told_to_be_none(home: Path, name: str, in_place: bool) -> None:
    (home / name).write_bytes(b"PK" + bytes(100))
    with pytest.raises(ConfigError, match=f"{name}' could not be read: it is not a GGUF file; other formats"):
        load_model(str(home / name), torch.float32, in_place=in_place)


def test_the_users_home_is_found(home: Path) -> None:
    write_model(home / "folder")
    tiny(home)
    for name in ("~/folder", "~/tiny.gguf"):
        assert load_model(name, torch.float32, in_place=True).name == name


@pytest.mark.parametrize(("name", "said"), [
    ("gone.gguf", "no such file"), ("GONE.GGUF", "no such file"), ("gone", "no such folder"),
    ("x" * 300, "File name too long"), ("~nobody-of-this-name/x", "no such folder"),
])  # fmt: skip
def test_a_model_that_is_not_there_is_told_by_name(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_model(name, torch.float32, in_place=True)
    assert str(error.value).startswith(f"model {name!r}: {said}")
