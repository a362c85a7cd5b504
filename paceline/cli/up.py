import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from coordinator.config import CoordinatorSettings
from draft_server.config import DraftSettings
from gateway.config import GatewaySettings
from paceline.cli.command import ADVANCED
from paceline.cli.models import fetch_all
from paceline.cli.services import Services, called_at
from paceline.cli.stack import Stack, make_stack
from paceline.errors import ConfigError, InvalidArgument
from paceline.rpc.channel import NO_TLS
from paceline.rpc.health import is_serving
from paceline.rpc.server import require_free_address, wait_for_signal
from paceline.rpc.tls import Names, Tls
from paceline.settings import Settings
from target_server.config import TargetSettings

COLORS = {"target": "cyan", "draft": "magenta", "coordinator": "green", "gateway": "blue"}


def _setting(settings: type[Settings], field: str, more: str = "", panel: str | None = None) -> Any:
    declared = settings.model_fields[field]
    default = declared.default
    shown = "" if default is None or "default:" in (declared.description or "") else f"; default: {default}"
    return typer.Option(help=f"{declared.description}{more}{shown}", show_default=False, rich_help_panel=panel)


def up(
    target_model: Annotated[str | None, _setting(TargetSettings, "model")] = None,
    draft_model: Annotated[str | None, _setting(DraftSettings, "model", ", or none: no draft server")] = None,
    listen: Annotated[str | None, _setting(CoordinatorSettings, "listen", " of the coordinator")] = None,
    http_listen: Annotated[
        str | None, _setting(GatewaySettings, "listen", " of the gateway, or none: no gateway")
    ] = None,
    device: Annotated[str | None, _setting(TargetSettings, "device", ": cpu, or cuda for both on one GPU")] = None,
    dtype: Annotated[str | None, _setting(TargetSettings, "dtype", ", of both models: float32 or bfloat16")] = None,
    drafter: Annotated[str | None, _setting(CoordinatorSettings, "drafter")] = None,
    num_speculative_tokens: Annotated[str | None, _setting(CoordinatorSettings, "num_speculative_tokens")] = None,
    max_num_seqs: Annotated[int | None, _setting(CoordinatorSettings, "max_num_seqs")] = None,
    targets: Annotated[int, typer.Option(help="number of target servers", rich_help_panel=ADVANCED)] = 1,
    drafts: Annotated[int, typer.Option(help="number of draft servers", rich_help_panel=ADVANCED)] = 1,
    max_model_len: Annotated[int | None, _setting(TargetSettings, "max_model_len", panel=ADVANCED)] = None,
    kv_cache_memory: Annotated[
        str | None, _setting(TargetSettings, "kv_cache_memory", "; of each server", ADVANCED)
    ] = None,
    api_keys: Annotated[Path | None, _setting(CoordinatorSettings, "api_keys", panel=ADVANCED)] = None,
    no_keys: Annotated[
        bool,
        typer.Option(
            "--no-keys", help=CoordinatorSettings.model_fields["no_keys"].description, rich_help_panel=ADVANCED
        ),
    ] = False,
    tls_cert: Annotated[Path | None, _setting(CoordinatorSettings, "tls_cert", panel=ADVANCED)] = None,
    tls_key: Annotated[Path | None, _setting(CoordinatorSettings, "tls_key", panel=ADVANCED)] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="file with that certificate's authority; the services trust it", rich_help_panel=ADVANCED),
    ] = None,
    tls_client_ca: Annotated[Path | None, _setting(CoordinatorSettings, "tls_client_ca", panel=ADVANCED)] = None,
    traces: Annotated[str | None, _setting(CoordinatorSettings, "traces", "; for all services", ADVANCED)] = None,
) -> None:
    """Starts draft server, target server, coordinator and gateway; prints `ready ADDRESS URL` when all serve.

    Ctrl-C stops them. Other settings of the services are read from their tables in paceline.toml: target, draft,
    coordinator and gateway. --http-listen none leaves out the gateway and the URL.
    """
    shared: dict[str, Any] = {"api_keys": api_keys, "no_keys": no_keys or None}
    shared |= {"tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca, "traces": traces}
    calling = _calling(tls_cert, tls_key, tls_ca, tls_client_ca)
    both = {"device": device, "dtype": dtype, "max_model_len": max_model_len, "kv_cache_memory": kv_cache_memory}
    both["traces"] = traces
    stack = make_stack(
        target=_given(model=target_model, **both),
        draft=_given(model=draft_model, **both),
        coordinator=_given(
            listen=listen, **shared, drafter=drafter, num_speculative_tokens=num_speculative_tokens, max_num_seqs=max_num_seqs
        ),
        gateway=None if http_listen == "none" else _given(
            listen=http_listen, **shared, servers_tls_ca=calling.ca, servers_tls_cert=calling.cert, servers_tls_key=calling.key
        ),
        client_tls=calling,
        num_targets=targets,
        num_drafts=drafts,
    )  # fmt: skip
    _require_addresses(stack)
    fetch_all(stack.models)
    asyncio.run(_run(stack))


def _calling(cert: Path | None, key: Path | None, ca: Path | None, client_ca: Path | None) -> Tls:
    if ca is None:
        return NO_TLS
    if cert is None:
        raise InvalidArgument("--tls-ca", "needs --tls-cert and --tls-key, the services' certificate")
    names = Names("--tls-cert", "--tls-key", "--tls-ca")
    return Tls(None, None, ca, names) if client_ca is None else Tls(cert, key, ca, names)


def _given(**options: Any) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return given | {name: str(value) for name, value in given.items() if isinstance(value, Path)}


def _require_addresses(stack: Stack) -> None:
    """Raises ConfigError if an address is taken, before models are fetched and loaded for nothing."""
    if is_serving(called_at(stack.listen), timeout_s=1.0, tls=stack.tls):
        raise ConfigError(
            f"a coordinator already serves at {stack.listen}; stop it, or set another address with --listen"
        )
    require_free_address(stack.listen)
    if stack.gateway is not None:
        require_free_address(stack.http_listen, "--http-listen")


async def _run(stack: Stack) -> None:
    """Runs until SIGTERM or SIGINT, also while models are loading."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def log_line(service: str, line: str) -> None:
        console.print(Text(f"{service:>11} | ", style=COLORS[service.partition("-")[0]]), Text(line), sep="")

    console.print("starting the services; the first start takes longer")
    stopping = asyncio.create_task(wait_for_signal())
    running = asyncio.create_task(_serve(stack, log_line))
    await asyncio.wait((stopping, running), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    print("stopping", file=sys.stderr)
    running.cancel()
    await asyncio.wait((running,))


async def _serve(stack: Stack, log_line: Any) -> None:
    async with Services(stack, log_line) as services:
        print(" ".join(filter(None, ("ready", services.address, services.url))), flush=True)
        flags = ""
        if called_at(services.address) != CoordinatorSettings.model_fields["listen"].default:
            flags += f" --address {called_at(services.address)}"
        flags += " --api-key-file FILE" if stack.has_keys else ""
        flags += f" --tls-ca {stack.tls.ca}" if stack.tls.ca else ""
        own = {"PACELINE_TLS_CERT": stack.tls.cert, "PACELINE_TLS_KEY": stack.tls.key}
        first = "".join(f"{name}={file} " for name, file in own.items() if file)
        print(f'try in another terminal: {first}paceline generate "Why is the sky blue?"{flags}', file=sys.stderr)
        if services.url is not None:
            print(f"or in a browser: {services.url}", file=sys.stderr)
        await services.watch()
