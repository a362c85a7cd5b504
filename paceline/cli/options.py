"""Options that several commands share.

An option with the panel ADVANCED is listed last in `--help`. A hidden option has no flag (see `paceline.cli.command`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from paceline.checks import require
from paceline.cli.command import ADVANCED
from paceline.client import AsyncClient
from paceline.errors import InvalidArgument
from paceline.keys import ENVIRONMENT, check_key
from paceline.output_format import OutputFormat
from paceline.rpc.channel import COORDINATOR_ADDRESS, check_address
from paceline.rpc.tls import ENVIRONMENT as TLS_ENVIRONMENT
from paceline.rpc.tls import Names, Tls, find_tls
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import (
    Drafter,
    DraftLength,
    Rule,
    SpeculationParams,
    parse_draft_length,
)

T = TypeVar("T")

PROMPT_FORMS = "JSON lines or a JSON list, with `prompt`, `messages`, `turns` (the first) or `conversations`"


def _checked_address(given: str | list[str] | None) -> str | list[str] | None:
    for address in [given] if isinstance(given, str) else given or []:
        check_address("--address", address)
    return given


def at_least_one_token(given: int | None) -> int | None:
    require(given is None or given >= 1, "max_tokens", given, "in [1, 2147483647]")
    return given


Address = Annotated[str, typer.Option(help="the coordinator's HOST:PORT or unix:PATH", callback=_checked_address)]
Addresses = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        help=f"a coordinator's HOST:PORT or unix:PATH; repeat to spread requests; default: {COORDINATOR_ADDRESS}",
        callback=_checked_address,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(help=f"file that contains the API key; default: ${ENVIRONMENT}", rich_help_panel=ADVANCED),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        help=f"connect over TLS, trusting the authority in this file (docs/server.md); default: ${TLS_ENVIRONMENT.ca}, "
        "or no TLS",
        rich_help_panel=ADVANCED,
    ),
]
# The client's certificate, for mutual TLS.
TlsCert = Annotated[Path | None, typer.Option(hidden=True)]
TlsKey = Annotated[Path | None, typer.Option(hidden=True)]

MaxTokens = Annotated[int, typer.Option(help="maximum number of tokens to generate", callback=at_least_one_token)]
Temperature = Annotated[float, typer.Option(help="sampling temperature; 0 is greedy")]
TopK = Annotated[int, typer.Option(help="sample from the k most likely tokens; 0: all", rich_help_panel=ADVANCED)]
TopP = Annotated[float, typer.Option(help="sample from the most likely tokens with this total probability")]
MinP = Annotated[float, typer.Option(hidden=True)]
Seed = Annotated[int | None, typer.Option(help="seed of the sampling; default: random, reported")]
Stop = Annotated[list[str] | None, typer.Option(help="stop before this string; repeatable")]
MinTokens = Annotated[int, typer.Option(hidden=True)]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="continue after the end-of-text token", rich_help_panel=ADVANCED)
]
RepetitionPenalty = Annotated[float, typer.Option(hidden=True)]
PresencePenalty = Annotated[float, typer.Option(hidden=True)]
FrequencyPenalty = Annotated[float, typer.Option(hidden=True)]
Logprobs = Annotated[int | None, typer.Option(hidden=True)]
Beams = Annotated[int, typer.Option(help="beam search with this many beams, 1 to 10", rich_help_panel=ADVANCED)]
LengthPenalty = Annotated[float, typer.Option(hidden=True)]
JsonSchema = Annotated[str | None, typer.Option(help="write JSON of this schema: a file, or the schema itself")]
CompactJson = Annotated[
    bool, typer.Option("--compact-json", help="with --json-schema: no white space for the model to choose; faster")
]
Choice = Annotated[list[str] | None, typer.Option(help="write this text, or one of several: repeatable")]
Regex = Annotated[
    str | None, typer.Option(help="write a text that this regular expression matches", rich_help_panel=ADVANCED)
]
Grammar = Annotated[
    Path | None, typer.Option(help="file: write a text of this grammar, in Lark or GBNF", rich_help_panel=ADVANCED)
]
SpeculationSwitch = Annotated[str | None, typer.Option(help="on or off; default: the coordinator's")]
DrafterName = Annotated[
    str | None, typer.Option(help=f"{', '.join(each.value for each in Drafter)}; default: the coordinator's")
]
DraftTokens = Annotated[
    str | None,
    typer.Option(help="draft tokens per round: 0 to 16, adaptive or entropy; default: the coordinator's"),
]
DraftMin = Annotated[int | None, typer.Option(hidden=True)]
DraftMax = Annotated[int | None, typer.Option(hidden=True)]
EntropyBeta = Annotated[float | None, typer.Option(hidden=True)]
RuleName = Annotated[
    str | None,
    typer.Option(
        help="verification rule above temperature 0: match or rejection; default: the coordinator's",
        rich_help_panel=ADVANCED,
    ),
]
Lenience = Annotated[float | None, typer.Option(hidden=True)]
DraftTemperature = Annotated[float | None, typer.Option(hidden=True)]
DraftName = Annotated[str, typer.Option(hidden=True)]


def given_format(
    json_schema: str | None, compact_json: bool, choice: list[str] | None, regex: str | None, grammar: Path | None
) -> OutputFormat | None:
    flags = {"--json-schema": json_schema, "--choice": choice or None, "--regex": regex, "--grammar": grammar}
    given = [flag for flag, value in flags.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgument(" and ".join(given), "are given; give one of them")
    if compact_json and json_schema is None:
        raise InvalidArgument("--compact-json", "needs --json-schema")
    if json_schema is not None:
        is_text = json_schema.lstrip().startswith("{")
        text = json_schema if is_text else read_text("--json-schema", Path(json_schema).expanduser())
        return OutputFormat(json_schema=text, fixed_whitespace=compact_json)
    if grammar is not None:
        return OutputFormat.of_grammar(read_text("--grammar", grammar))
    if given:
        return OutputFormat(choice=tuple(choice or ()), regex=regex or "")
    return None


def given_length(
    num_speculative_tokens: str | None, draft_min: int | None, draft_max: int | None, entropy_beta: float | None
) -> DraftLength | None:
    if all(each is None for each in (num_speculative_tokens, draft_min, draft_max, entropy_beta)):
        return None
    return parse_draft_length(
        num_speculative_tokens, draft_min=draft_min, draft_max=draft_max, entropy_beta=entropy_beta
    )


def given_speculation(
    speculation: str | None,
    drafter: str | None,
    length: DraftLength | None,
    rule: str | None,
    lenience: float | None = None,
    draft_temperature: float | None = None,
    draft_model: str = "",
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if speculation is not None:
        given["enabled"] = _choice("speculation", speculation, {"on": True, "off": False})
    if drafter is not None:
        given["drafter"] = _choice("drafter", drafter, {member.value: member for member in Drafter})
    if length is not None:
        given["num_speculative_tokens"] = length
    if rule is not None:
        given["rule"] = _choice("rule", rule, {member.value: member for member in Rule})
    if lenience is not None:
        given["lenience"] = lenience
    if draft_temperature is not None:
        given["draft_temperature"] = draft_temperature
    if draft_model:
        given["draft_model"] = draft_model
    return given


async def resolve_speculation(
    client: AsyncClient, given: dict[str, Any], sampling: SamplingParams
) -> SpeculationParams | None:
    """Merges the given fields into the coordinator's defaults. Raises InvalidArgument."""
    return (await client.describe()).defaults.overruled_by(given, sampling) if given else None


def read_key(path: Path | None) -> str | None:
    """Raises InvalidArgument without naming the file: somebody may have passed the key itself."""
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument("--api-key-file", f"can't be read: {said}") from None
    return check_key("the key in --api-key-file", text.strip())


def read_tls(ca: Path | None, cert: Path | None, key: Path | None) -> Tls:
    """Takes each file from the options, else the environment. Raises ConfigError."""
    default = find_tls(None)
    tls = Tls(
        cert or default.cert, key or default.key, ca or default.ca,
        Names(
            "tls_cert" if cert else TLS_ENVIRONMENT.cert,
            "tls_key" if key else TLS_ENVIRONMENT.key,
            "--tls-ca" if ca else TLS_ENVIRONMENT.ca,
        ),
    )  # fmt: skip
    if tls:
        tls.client_context()
    return tls


def connector(address: str, api_key_file: Path | None, tls: Tls) -> Callable[[], AsyncClient]:
    """Returns a function that makes a client. Raises InvalidArgument at once for a bad key."""
    key = read_key(api_key_file)
    return lambda: AsyncClient(address, key, tls)


def read_text(name: str, path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidArgument(name, f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(name, f"{path}: not UTF-8 text") from None


def require_file(name: str, path: Path | None, suffix: str = "") -> None:
    """Raises InvalidArgument, before any work, unless `path` can be written."""
    if path is None:
        return
    require(path.parent.is_dir() and not path.is_dir(), name, str(path), "a file in a folder that exists")
    require(not suffix or path.suffix.lower() == suffix, name, str(path), f"a file whose name ends in {suffix}")


def _choice(name: str, value: str, known: dict[str, T]) -> T:
    if value not in known:
        raise InvalidArgument.of_value(f"--{name}", value, " or ".join(known))
    return known[value]
