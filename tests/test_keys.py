"""A ring of keys follows its file, and gives nothing away."""

import hmac
import logging
import os
import stat
from pathlib import Path

import pytest

from paceline import keys, reloaded
from paceline.errors import ConfigError, InvalidArgument
from paceline.keys import KeyRing, check_key, find_key, make_key, require_keys_or_loopback

HASH = "sha256:" + "ab" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring looks at its file at every call."""
    monkeypatch.setattr(reloaded, "LOOK_INTERVAL_S", 0.0)


def test_a_key_is_its_owners_and_nothing_else_is(file: Path) -> None:
    alice, bob = make_key(file, "alice"), make_key(file, "bob")
    ring = KeyRing(file)
    assert [ring.name_of(key) for key in (alice, bob)] == ["alice", "bob"]
    wrong = [None, "", alice[:-1], alice + "x", alice.swapcase(), " " + alice, "\udcff", "é", file.read_text()]
    assert [ring.name_of(key) for key in wrong] == [None] * len(wrong)


def test_keys_are_long_and_none_is_like_another(file: Path) -> None:
    made = {make_key(file, f"n{number}") for number in range(20)}
    assert len(made) == 20
    assert all(len(key) * 6 >= 256 and check_key("key", key) for key in made)


def test_the_file_holds_hashes_alone_and_is_its_owners(file: Path) -> None:
    key = make_key(file, "alice")
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_is_appended_to_what_is_there(file: Path) -> None:
    file.write_text("# people\n\nalice " + HASH)  # without a line feed at its end
    make_key(file, "bob")
    lines = file.read_text().split("\n")
    assert lines[:3] == ["# people", "", f"alice {HASH}"]
    assert (lines[3].startswith("bob sha256:"), lines[4:]) == (True, [""])


def test_a_name_is_given_once(file: Path) -> None:
    make_key(file, "alice")
    before = file.read_bytes()
    with pytest.raises(InvalidArgument, match=r"^NAME is 'alice', which is already in .*keys"):
        make_key(file, "alice")
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "é", "a\n", "a:b", "#a"])
def test_what_is_no_name_is_refused_and_no_file_is_made(file: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^NAME is .*1 to 64"):
        make_key(file, name)
    assert not file.exists()


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "a" * 64])
def test_a_name_may_have_64_characters(file: Path, name: str) -> None:
    key = make_key(file, name)
    assert KeyRing(file).name_of(key) == name


BAD_LINES = {
    "a key in place of its hash": "bob s3cret-s3cret-s3cret",
    "a short hash": "bob sha256:abcd",
    "another hash": "bob md5:" + "ab" * 32,
    "no name": HASH,
    "a name of strange characters": f"b\u00f6b {HASH}",
    "a third word": f"bob {HASH} s3cret",
    "the name of another": "alice sha256:" + "cd" * 32,
    "the key of another": f"bob {HASH}",
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_line_is_named_at_start_and_not_shown(file: Path, line: str) -> None:
    file.write_text(f"# one\nalice {HASH}\n\n{line}\n")
    with pytest.raises(ConfigError, match=r"keys, line 4: ") as caught:
        KeyRing(file)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_can_not_be_read_again_and_again_is_refused_at_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("nothing", "No such file"), (".", "not a regular file"), ("pipe", "not a regular file")):
        with pytest.raises(ConfigError, match=f"can't read the API keys in .*{said}"):
            KeyRing(tmp_path / name)


def test_windows_line_ends_tabs_and_capitals_are_taken(file: Path) -> None:
    key = make_key(file, "alice")
    name, _, digest = file.read_text().strip().partition(" ")
    file.write_bytes(f"\r\n{name}\t sha256:{digest[7:].upper()}\r\n".encode())
    assert KeyRing(file).name_of(key) == "alice"


def test_a_refusal_compares_all_lines_and_so_does_a_match(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [make_key(file, f"n{number}") for number in range(7)]
    ring = KeyRing(file)
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    for key in (made[0], made[3], made[6], "no such key", made[0][:-1] + "!"):
        compared.clear()
        ring.name_of(key)
        assert compared == [(32, 32)] * 7


@pytest.mark.usefixtures("always_looking")
def test_a_ring_follows_its_file(file: Path) -> None:
    alice = make_key(file, "alice")
    ring = KeyRing(file)
    bob = make_key(file, "bob")
    assert [ring.name_of(key) for key in (alice, bob)] == ["alice", "bob"], "a line was appended"
    new = file.with_name("new")
    new.write_text("\n".join(line for line in file.read_text().splitlines() if not line.startswith("alice")))
    new.replace(file)
    assert [ring.name_of(key) for key in (alice, bob)] == [None, "bob"], "a file has taken its place"
    file.write_text("")
    assert ring.name_of(bob) is None


@pytest.mark.usefixtures("always_looking")
def test_a_file_that_goes_bad_leaves_the_keys_and_is_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = make_key(file, "alice")
    good = file.read_text()
    ring = KeyRing(file)
    spoil = {
        "line 2": lambda: file.write_text(f"{good}bob {key}\n"),
        "No such file": file.unlink,
        "not a regular file": file.mkdir,
    }
    for said, action in spoil.items():
        caplog.clear()
        action()
        assert [ring.name_of(key) for _ in range(3)] == ["alice"] * 3
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert said in record.getMessage()
        assert "keeping the previous keys" in record.getMessage()
    file.rmdir()
    file.write_text("")
    assert ring.name_of(key) is None, "it is good again"
    assert key not in caplog.text


@pytest.mark.usefixtures("always_looking")
def test_a_file_that_may_be_read_again_is_read_though_its_times_are_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(file, "alice")
    ring = KeyRing(file)
    file.write_text("")
    # Root may read any file: only a fake can refuse.
    with monkeypatch.context() as refusing:
        refusing.setattr(
            Path, "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
        assert ring.name_of(key) == "alice"
    assert ring.name_of(key) is None


def test_the_file_is_looked_at_once_a_second_at_most(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    # A clock of the test's own: nobody waits.
    monkeypatch.setattr(reloaded.time, "monotonic", lambda: now_s)
    key = make_key(file, "alice")
    ring = KeyRing(file)
    file.write_text("")
    now_s += 0.99
    assert ring.name_of(key) == "alice"
    now_s += 0.02
    assert ring.name_of(key) is None


def test_no_key_is_in_a_repr(file: Path) -> None:
    key = make_key(file, "alice")
    ring = KeyRing(file)
    assert ring.name_of(key) == "alice"
    assert key not in repr(ring) + repr(vars(ring))


def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("s3cret key", "s3cret\n", "s3cr\u00e9t", "", "s3cret" * 100, b"s3cret"):
        with pytest.raises(InvalidArgument, match=r"^key must be 1 to 512 printable") as caught:
            find_key(bad)  # type: ignore[arg-type]
        assert "s3cr" not in str(caught.value)
    monkeypatch.setenv("PACELINE_API_KEY", "s3cret key")
    with pytest.raises(InvalidArgument, match=r"^PACELINE_API_KEY must be 1 to 512 printable") as caught:
        find_key(None)
    assert "s3cret" not in str(caught.value)


def test_the_environment_gives_a_key_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)
    assert find_key(None) is None
    monkeypatch.setenv("PACELINE_API_KEY", " one\n")
    assert (find_key(None), find_key("two")) == ("one", "two")
    monkeypatch.setenv("PACELINE_API_KEY", "")
    assert find_key(None) is None


LOCAL = ["127.0.0.1:50050", "127.8.9.10:1", "localhost:1", "LocalHost:1", "[::1]:50050", "unix:x", "unix:/a b/c.sock"]
OPEN = ["0.0.0.0:50050", "[::]:50050", "192.168.0.1:1", "[fe80::1]:1", "localhost.example.com:1", "coordinator:1", "127.1:1", "128.0.0.1:1"]  # fmt: skip


@pytest.mark.parametrize("listen", LOCAL)
def test_this_machine_alone_needs_no_keys(listen: str) -> None:
    require_keys_or_loopback(listen, has_keys=False, no_keys=False, has_client_ca=False)


@pytest.mark.parametrize("listen", OPEN)
def test_an_address_open_to_others_needs_keys_or_a_word(listen: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_keys_or_loopback(listen, has_keys=False, no_keys=False, has_client_ca=False)
    said = str(caught.value)
    assert [part for part in (listen, "--api-keys FILE", "--no-keys", "paceline key") if part not in said] == []
    assert "\n" not in said
    require_keys_or_loopback(listen, has_keys=True, no_keys=False, has_client_ca=False)
    require_keys_or_loopback(listen, has_keys=False, no_keys=True, has_client_ca=False)


@pytest.mark.parametrize("listen", [LOCAL[0], OPEN[0]])
def test_keys_and_no_keys_together_are_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"^--api-keys and --no-keys are given"):
        require_keys_or_loopback(listen, has_keys=True, no_keys=True, has_client_ca=False)


def test_a_line_may_name_a_weight(file: Path) -> None:
    file.write_text(f"alice {HASH} weight=4\nbob sha256:{'cd' * 32}\ncarol sha256:{'ef' * 32}\tweight=0.5\n")
    ring = KeyRing(file)
    assert [ring.weight_of(name) for name in ("alice", "bob", "carol", "nobody", None)] == [4.0, 1.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "1e3", "2000", "0.001", "x", "4,5", "٣"])
def test_a_weight_outside_its_range_is_refused_with_the_range(file: Path, weight: str) -> None:
    file.write_text(f"# people\nalice {HASH} weight={weight}\n")
    with pytest.raises(ConfigError, match=r"line 2: weight must be a number in \[0.01, 1000\]"):
        KeyRing(file)
