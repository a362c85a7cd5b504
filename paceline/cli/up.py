"""`paceline up`: the three services on this machine."""

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from paceline.cli.services import Deployment, Services
from paceline.rpc.server import wait_for_signal

COLOURS = {"target": "cyan", "draft": "magenta", "coordinator": "green"}
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DRAFT = "smollm2-135m-draft"
DEFAULT_DRAFT_QUANTIZATION = "int8"
# Of one GPU's memory; what they leave is for two CUDA contexts.
TARGET_FRACTION, DRAFT_FRACTION = "0.60", "0.30"


def up(
    listen: Annotated[str, typer.Option(help="HOST:PORT or unix:PATH of the coordinator")] = "127.0.0.1:50050",
    target_model: Annotated[
        str, typer.Option(help="hub id, folder, .gguf file, smollm2-135m or dummy:NAME")
    ] = DEFAULT_MODEL,
    draft_model: Annotated[str, typer.Option(help="the same, or none: no draft server")] = DEFAULT_DRAFT,
    device: Annotated[str, typer.Option(help="cpu or cuda: both models on one GPU")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16, of both models")] = "bfloat16",
    draft_quantization: Annotated[str, typer.Option(help="none or int8")] = DEFAULT_DRAFT_QUANTIZATION,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="most tokens in a sequence; default: the models' own")
    ] = None,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="memory for keys and values of each server, in bytes; default: the servers' own")
    ] = None,
    speculation: Annotated[bool, typer.Option(help="speculate where a request does not say")] = True,
    drafter: Annotated[str, typer.Option(help="model, ngram, hybrid or custom")] = "model",
    custom_drafter: Annotated[str | None, typer.Option(help="MODULE:FACTORY of a drafter of your own")] = None,
    draft_tokens: Annotated[str, typer.Option(help="tokens proposed in a round: 0 to 16, adaptive or entropy")] = "4",
    rule: Annotated[str, typer.Option(help="match or rejection, above temperature 0")] = "rejection",
    coupled: Annotated[bool, typer.Option(help="the draft draws with the target's noise")] = False,
    lenience: Annotated[float, typer.Option(help="in (0, 1]; 1 is lossless")] = 1.0,
    max_running: Annotated[int, typer.Option(min=1, help="most generations at once")] = 256,
) -> None:
    """Starts draft server, target server and coordinator; prints `ready ADDRESS` when all serve; Ctrl-C stops all."""
    deployment = make_deployment(
        listen, target_model, draft_model, dtype, draft_quantization,
        [
            *(["--kv-cache-memory", kv_cache_memory] if kv_cache_memory else []),
            *(["--max-model-len", str(max_model_len)] if max_model_len else []),
        ],
        [
            "--speculation" if speculation else "--no-speculation",
            "--drafter", drafter, "--draft-tokens", draft_tokens, "--rule", rule,
            "--coupled" if coupled else "--no-coupled", "--lenience", str(lenience),
            *(["--custom-drafter", custom_drafter] if custom_drafter else []),
            "--max-running", str(max_running),
        ],
        device,
    )  # fmt: skip
    asyncio.run(_run(deployment))


def make_deployment(
    listen: str, target_model: str, draft_model: str, dtype: str, draft_quantization: str,
    server_flags: list[str], coordinator_flags: list[str], device: str = "cpu",
) -> Deployment:  # fmt: skip
    """Flags of the three processes from flags of `paceline up`."""
    common = ["--dtype", dtype, "--device", device, *server_flags]
    draft = ["--model", draft_model, "--quantization", draft_quantization, *common]
    target = ["--model", target_model, *common]
    if device == "cuda":
        target += ["--gpu-memory-fraction", TARGET_FRACTION]
        draft += ["--gpu-memory-fraction", DRAFT_FRACTION]
    return Deployment(
        target=target,
        draft=None if draft_model == "none" else draft,
        coordinator=coordinator_flags,
        listen=listen,
    )


async def _run(deployment: Deployment) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def log_line(service: str, line: str) -> None:
        console.print(Text(f"{service:>11} | ", style=COLOURS[service]), Text(line), sep="")

    async with Services(deployment, log_line) as services:
        print(f"ready {services.address}", flush=True)
        watch = asyncio.create_task(services.watch())
        await wait_for_signal()
        watch.cancel()
        print("stopping", file=sys.stderr)
