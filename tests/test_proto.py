"""The contract: the committed stubs are what it generates, and every part of it is explained."""

import itertools
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROTOS = sorted((ROOT / "proto" / "paceline" / "v1").glob("*.proto"))


def test_stubs_are_what_the_contract_generates(tmp_path: Path) -> None:
    services = [file for file in PROTOS if "\nservice " in file.read_text()]
    for flags, files in ((["--python_out", "--pyi_out"], PROTOS), (["--grpc_python_out"], services)):
        outputs = [f"{flag}={tmp_path}" for flag in flags]
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT / 'proto'}",
            f"-I{sysconfig.get_path('purelib')}",
            *outputs,
            *map(str, files),
        ]
        subprocess.run(command, check=True)
    made = {file.name: file.read_text() for file in (tmp_path / "paceline" / "v1").iterdir()}
    folder = ROOT / "paceline" / "v1"
    committed = {file.name: file.read_text() for file in folder.iterdir() if "_pb2" in file.name and file.is_file()}
    assert sorted(made) == sorted(committed)
    assert [name for name in made if made[name] != committed[name]] == []


@pytest.mark.parametrize("file", PROTOS, ids=lambda file: file.name)
def test_every_part_of_the_contract_has_a_comment(file: Path) -> None:
    lines = [line.strip() for line in file.read_text().splitlines()]
    bare = [
        line
        for before, line in itertools.pairwise(lines)
        if (
            line.startswith(("message ", "enum ", "service ", "rpc ", "oneof "))
            or ("= " in line and line.endswith(";"))
        )
        and not line.startswith(("syntax", "//"))
        and not before.startswith("//")
    ]
    assert bare == []
