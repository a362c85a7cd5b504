"""`paceline key`, and how the other commands are given a key."""

import io
from pathlib import Path

import pytest

from paceline.keys import KeyRing, make_key
from tests.hosted import Host
from tests.services import Trio

COMMANDS = {
    "generate": ("generate", "t1 t2", "--max-tokens", "3"),
    "chat": ("chat",),
    "bench": ("bench", "--requests", "1", "--synthetic", "4:3"),
    "plan": ("plan", "--measure", "--max-tokens", "30", "--temperature", "0.8"),
}
HINT = "(set a key with --api-key-file FILE or $PACELINE_API_KEY)\n"
each_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key in the environment, and an end of the conversation on stdin."""
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """alice's key, followed by a line feed as from an editor, and the coordinator's key file."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "alice").write_text(make_key(folder / "keys", "alice") + "\n")
    return folder / "alice"


@pytest.fixture(scope="module")
def address(host: Host, unlike_trio: Trio, key_file: Path) -> str:
    servers = ("--draft", unlike_trio.draft.address, "--target", unlike_trio.target.address)
    return host.start("coordinator", *servers, "--api-keys", str(key_file.with_name("keys"))).address


def test_a_key_is_printed_once_and_its_hash_is_kept(paceline, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    ran = paceline("key", "alice", "--file", file)
    key = ran.out.removesuffix("\n")
    assert (ran.code, KeyRing(file).name_of(key)) == (0, "alice")
    assert key not in ran.err
    assert key not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("alice",), "NAME is 'alice', which "),
        (("a b",), "NAME is 'a b'; it must be 1 to 64 "),
        (("bob", "--file", "/nowhere/keys"), "can't write /nowhere/keys: No such file or directory"),
    ],
)
def test_a_key_that_can_not_be_made_is_one_line(
    paceline, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    make_key(tmp_path / "keys", "alice")
    ran = paceline("key", "--file", tmp_path / "keys", *arguments)
    assert (ran.code in (1, 2), ran.out, ran.err.count("\n")) == (True, "", 1), ran
    assert ran.err.startswith(f"error: {said}")


@each_command
def test_commands_without_a_key_say_how_to_give_one(paceline, address: str, command: tuple[str, ...]) -> None:
    ran = paceline(*command, "--address", address)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"error: the call has no API key; send one as `authorization: Bearer KEY` {HINT}"


@each_command
def test_commands_with_a_wrong_key_say_so_and_do_not_show_it(
    paceline, address: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_API_KEY", "wr0ng")
    ran = paceline(*command, "--address", address)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"error: the API key is not one that this server knows {HINT}"


@each_command
@pytest.mark.parametrize("way", ["flag", "environment", "flag over environment"])
def test_commands_send_the_key_they_are_given(
    paceline, address: str, key_file: Path, command: tuple[str, ...], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = ("--api-key-file", key_file) if "flag" in way else ()
    if "environment" in way:
        monkeypatch.setenv("PACELINE_API_KEY", "wrong" if flag else key_file.read_text().strip())
    ran = paceline(*command, "--address", address, *flag)
    assert ran.code == 0, ran.err
    assert key_file.read_text().strip() not in ran.out + ran.err


@each_command
def test_a_bad_file_is_one_line_that_shows_nothing_of_it(
    paceline, tmp_path: Path, address: str, command: tuple[str, ...]
) -> None:
    said = {
        b"": "the key in --api-key-file must be 1 to 512 printable ASCII characters without spaces",
        b"s3cret s3cret": "the key in --api-key-file must be 1 to 512 printable ASCII characters without spaces",
        b"s3cret\xff": "--api-key-file can't be read: it is not UTF-8 text",
        None: "--api-key-file can't be read: No such file or directory",
    }
    for content, error in said.items():
        file = tmp_path / ("s3cret-in-place-of-a-file" if content is None else "file")
        if content is not None:
            file.write_bytes(content)
        ran = paceline(*command, "--address", address, "--api-key-file", file)
        assert (ran.code, ran.out, ran.err) == (2, "", f"error: {error}\n")


def test_no_command_takes_the_key_itself(paceline) -> None:
    for command in COMMANDS:
        ran = paceline(command, "--help")
        assert "--api-key-file" in ran.out
        assert "--api-key " not in ran.out
