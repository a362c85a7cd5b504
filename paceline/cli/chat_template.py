import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.errors import ConfigError


def chat_template(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="folder, GGUF file, name from `paceline models` or hub id")
    ],
    conversation: Annotated[
        Path | None, typer.Option(help="render this JSON file: OpenAI's messages, or an object with messages and tools")
    ] = None,
) -> None:
    """Shows what a model's chat template does with roles, tools, calls and reasoning.

    The format of calls is found by rendering the template, as the coordinator does.
    """
    # They load a tokenizer's libraries, and torch: other commands start without.
    from coordinator.tokenizer import Tokenizer
    from coordinator.tools.template_report import describe_template, render_conversation
    from target_server.tokenizer_source import load_tokenizer_files

    given = None if conversation is None else _read(conversation)
    tokenizer = Tokenizer(load_tokenizer_files(model))
    if given is not None:
        print(render_conversation(tokenizer, given), end="")
        return
    for name, text in describe_template(tokenizer):
        first, *others = text.split("\n")
        print(f"{name:18}  {first}")
        for line in others:
            print(f"{'':18}  {line}")


def _read(path: Path) -> object:
    try:
        found: object = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--conversation {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"--conversation {path}: is not JSON: {error}") from error
    return found
