"""Options that `generate`, `chat` and `demo` share, and what they become."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from paceline.checks import require
from paceline.client import AsyncClient
from paceline.errors import InvalidArgument, Unauthenticated, Unavailable, Unreachable
from paceline.keys import ENVIRONMENT, check_key
from paceline.rpc.channel import check_address
from paceline.rpc.tls import ENVIRONMENT as TLS_ENVIRONMENT
from paceline.rpc.tls import Names, Tls, find_tls
from paceline.sampling import SamplingParams
from paceline.speculation import (
    MAX_DRAFT_TOKENS,
    Drafter,
    DraftLength,
    DraftMode,
    Rule,
    SpeculationParams,
    parse_draft_length,
)

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:50050"
PROMPT_FORMS = "JSON lines or a JSON list, with `prompt`, `messages`, `turns` (the first) or `conversations`"


def _checked_address(given: str | list[str] | None) -> str | list[str] | None:
    for address in [given] if isinstance(given, str) else given or []:
        check_address("--address", address)
    return given


Address = Annotated[str, typer.Option(help="the coordinator's HOST:PORT or unix:PATH", callback=_checked_address)]
Addresses = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        help=f"a coordinator's HOST:PORT or unix:PATH; several are asked in turn; default: {DEFAULT_ADDRESS}",
        callback=_checked_address,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(help=f"a file that holds the API key and nothing else; default: the variable {ENVIRONMENT}"),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        help="speak TLS, and trust certificates of the authority in this file (docs/server.md); default: the variable "
        f"{TLS_ENVIRONMENT.ca}, or no TLS"
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        help=f"the certificate to show to a coordinator that asks for one; default: the variable {TLS_ENVIRONMENT.cert}"
    ),
]
TlsKey = Annotated[
    Path | None, typer.Option(help=f"that certificate's key, in a file; default: the variable {TLS_ENVIRONMENT.key}")
]
TLS_FLAGS = Names("--tls-cert", "--tls-key", "--tls-ca")


def at_least_one_token(given: int | None) -> int | None:
    """A command has output to show, so it asks for some. Raises InvalidArgument."""
    require(given is None or given >= 1, "max_tokens", given, "in [1, 2147483647]")
    return given


MaxTokens = Annotated[int, typer.Option(help="most tokens to generate", callback=at_least_one_token)]
Temperature = Annotated[float, typer.Option(help="0 is greedy")]
TopK = Annotated[int, typer.Option(help="keep the k most likely tokens; 0 keeps all")]
TopP = Annotated[float, typer.Option(help="keep the likeliest tokens up to this mass, in [0, 1]")]
MinP = Annotated[float, typer.Option(help="keep tokens this many times as likely as the likeliest, in [0, 1]")]
Seed = Annotated[int | None, typer.Option(help="repeats a text; default: a fresh one, reported")]
Stop = Annotated[list[str] | None, typer.Option(help="end before this string; may be given several times")]
MinTokens = Annotated[int, typer.Option(help="no end before so many tokens")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="go on past the model's end of text")]
RepetitionPenalty = Annotated[float, typer.Option(help="above 1: tokens seen before, prompt included, are less likely")]
PresencePenalty = Annotated[float, typer.Option(help="taken off the logits of tokens generated before")]
FrequencyPenalty = Annotated[float, typer.Option(help="taken off for each time a token was generated before")]
Logprobs = Annotated[int | None, typer.Option(help="with --json: log-probabilities, also of the N likeliest tokens")]
Beams = Annotated[int, typer.Option(help="beam search over so many hypotheses, 1 to 10; the best comes at the end")]
LengthPenalty = Annotated[
    float, typer.Option(help="of beams: above 0 longer texts are better, below 0 shorter ones; in [-10, 10]")
]
SpeculationSwitch = Annotated[str | None, typer.Option(help="on or off; default: the coordinator's")]
DrafterName = Annotated[
    str | None, typer.Option(help=f"{', '.join(each.value for each in Drafter)}; default: the coordinator's")
]
DraftTokens = Annotated[
    str | None,
    typer.Option(help="tokens proposed in a round: 0 to 16, adaptive or entropy; default: the coordinator's"),
]
DraftMin = Annotated[
    int | None, typer.Option(help="with --draft-tokens adaptive or entropy: the fewest, 0 to --draft-max; default: 0")
]
DraftMax = Annotated[
    int | None,
    typer.Option(help=f"with --draft-tokens adaptive or entropy: the most, 1 to {MAX_DRAFT_TOKENS}; default: 8"),
]
EntropyBeta = Annotated[
    float | None,
    typer.Option(
        help="with --draft-tokens entropy: weight of the past in the smoothed entropy, in [0, 1); default: 0.5"
    ),
]
RuleName = Annotated[
    str | None, typer.Option(help="match or rejection, above temperature 0; default: the coordinator's")
]
Coupled = Annotated[
    bool, typer.Option("--coupled", help="the draft draws with the target's noise; implies --rule match")
]
Lenience = Annotated[
    float | None,
    typer.Option(
        help="in (0, 1]: accept with min(1, p/(lenience q)); below 1 the output's law is not quite the target's"
    ),
]
DraftTemperature = Annotated[
    float | None, typer.Option(help="above 0: at which a draft model draws, without a change of the output's law")
]


def given_length(
    draft_tokens: str | None, draft_min: int | None, draft_max: int | None, entropy_beta: float | None
) -> DraftLength | None:
    """What --draft-tokens and the flags that go with it say; None where none was given. Raises InvalidArgument."""
    if all(each is None for each in (draft_tokens, draft_min, draft_max, entropy_beta)):
        return None
    return parse_draft_length(draft_tokens, draft_min=draft_min, draft_max=draft_max, entropy_beta=entropy_beta)


def given_speculation(
    speculation: str | None,
    drafter: str | None,
    length: DraftLength | None,
    rule: str | None,
    coupled: bool,
    lenience: float | None = None,
    draft_temperature: float | None = None,
) -> dict[str, Any]:
    """The SpeculationParams fields that were given. Raises InvalidArgument."""
    given: dict[str, Any] = {}
    if speculation is not None:
        given["enabled"] = _choice("speculation", speculation, {"on": True, "off": False})
    if drafter is not None:
        given["drafter"] = _choice("drafter", drafter, {member.value: member for member in Drafter})
    if length is not None:
        given["num_draft_tokens"] = length
    if rule is not None:
        given["rule"] = _choice("rule", rule, {member.value: member for member in Rule})
    if lenience is not None:
        given["lenience"] = lenience
    if draft_temperature is not None:
        given["draft_temperature"] = draft_temperature
    if coupled:
        if given.get("rule") is Rule.REJECTION:
            raise InvalidArgument("--coupled", "is a form of --rule match; leave out --rule rejection")
        given |= {"rule": Rule.MATCH, "draft_mode": DraftMode.COUPLED}
    return given


async def resolve_speculation(
    client: AsyncClient, given: dict[str, Any], sampling: SamplingParams
) -> SpeculationParams | None:
    """What was given over the coordinator's own defaults; None where nothing was. Raises InvalidArgument."""
    return (await client.describe()).defaults.overruled_by(given, sampling) if given else None


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a subcommand's coroutine."""
    with naming_the_flag():
        return asyncio.run(main)


@contextlib.contextmanager
def naming_the_flag() -> Iterator[None]:
    """Where no coordinator answers, or one wants another key, the error names the flag that gives it."""
    try:
        yield
    except Unauthenticated as error:
        raise Unauthenticated(f"{error} (--api-key-file FILE or the variable {ENVIRONMENT} gives a key)") from None
    except Unreachable as error:
        hint = "is `paceline up` running? --address gives another address, --tls-ca, --tls-cert and --tls-key speak TLS"
        raise Unavailable(f"{error} ({hint})") from None


def read_key(path: Path | None) -> str | None:
    """The API key in the file; None, which leaves it to the environment, where no file is given.

    Raises InvalidArgument, which does not name the file: somebody may have given the key itself.
    """
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument("--api-key-file", f"can't be read: {said}") from None
    return check_key("the key in --api-key-file", text.strip())


def read_tls(ca: Path | None, cert: Path | None, key: Path | None) -> Tls:
    """What flags say, or else the environment. Raises ConfigError for files that are missing or bad."""
    given = Tls(cert, key, ca, TLS_FLAGS)
    if not given:
        return find_tls(None)
    given.client_context()
    return given


def connector(address: str, api_key_file: Path | None, tls: Tls) -> Callable[[], AsyncClient]:
    """What makes a client, which has to happen inside of an event loop. Raises InvalidArgument now."""
    key = read_key(api_key_file)
    return lambda: AsyncClient(address, key, tls)


def require_file(name: str, path: Path | None, suffix: str = "") -> None:
    """Raises InvalidArgument unless `path` can be written: said before any work."""
    if path is None:
        return
    require(path.parent.is_dir() and not path.is_dir(), name, str(path), "a file in a folder that exists")
    require(not suffix or path.suffix.lower() == suffix, name, str(path), f"a file whose name ends in {suffix}")


def _choice(name: str, value: str, known: dict[str, T]) -> T:
    if value not in known:
        raise InvalidArgument.of_value(f"--{name}", value, " or ".join(known))
    return known[value]
