import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline.catalog.known_models import PAIRS
from paceline.checks import require
from paceline.cli import options
from paceline.cli.command import run
from paceline.cli.models import fetch_all
from paceline.cli.printing import colored, legend, print_stats, tokens_per_second
from paceline.cli.services import Services, make_socket_folder
from paceline.cli.stack import Stack, make_stack
from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

# One that the model answers freely, and one whose answer is mostly in the prompt.
FREE = "What is the capital of France, and what is it famous for?"
EDIT = '''Rename `total` to `price` everywhere, and return the whole code without comments:

```python
def add_tax(total, rate):
    """Return the total with tax."""
    return total + total * rate


def add_shipping(total, weight):
    """Return the total with shipping."""
    return total + 4.50 + 0.75 * weight


def add_discount(total, percent):
    """Return the total after a discount."""
    return total - total * percent / 100
```'''
# Timed in turns, so that load on the machine affects both alike.
TIMED_RUNS = 3
DRAFTERS = ", ".join(each.value for each in Drafter if each is not Drafter.CUSTOM)


def demo(
    prompt: Annotated[
        str | None, typer.Argument(help="prompt; default: a question, and a text to edit", show_default=False)
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(help=f"target and draft: {', '.join(PAIRS)} (1.6 GB, fetched on first use); default: smollm2"),
    ] = None,
    max_tokens: options.MaxTokens = 96,
    num_speculative_tokens: Annotated[
        str, typer.Option(help="draft tokens per round: 1 to 16, adaptive or entropy")
    ] = "adaptive",
    draft_min: options.DraftMin = None,
    draft_max: options.DraftMax = None,
    entropy_beta: options.EntropyBeta = None,
    drafter: Annotated[str, typer.Option(help=DRAFTERS)] = "hybrid",
) -> None:
    """Starts the services, answers two prompts, compares the speed with and without speculation, and stops them."""
    require(pair is None or pair in PAIRS, "--pair", pair, f"one of {', '.join(PAIRS)}")
    length = options.given_length(num_speculative_tokens, draft_min, draft_max, entropy_beta)
    given = options.given_speculation(None, drafter, length, rule=None)
    speculative = SpeculationParams(**given)
    require(
        speculative.num_speculative_tokens != 0,
        "num_speculative_tokens",
        num_speculative_tokens,
        "at least 1",
    )
    require(speculative.drafter is not Drafter.CUSTOM, "--drafter", drafter, DRAFTERS)
    sampling = SamplingParams(max_tokens=max_tokens)
    prompts = {"free answer": FREE, "edit": EDIT} if prompt is None else {"prompt": prompt}
    target, draft = ({}, {}) if pair is None else ({"model": name} for name in PAIRS[pair])
    with make_socket_folder("paceline-demo-") as folder:
        # No recent responses: the prompt is repeated, and must not be drafted from its own response.
        address = f"unix:{Path(folder) / 'coordinator.sock'}"
        stack = make_stack(target, draft, coordinator={"listen": address, "suffix_cache_tokens": 0})
        fetch_all(stack.models)
        run(_run(stack, prompts, sampling, speculative))


async def _run(
    stack: Stack, prompts: Mapping[str, str], sampling: SamplingParams, speculative: SpeculationParams
) -> None:
    console = Console(highlight=False)
    console.print("starting draft server, target server and coordinator …", style="dim")
    async with (
        Services(stack, _log_trouble) as services,
        AsyncClient(services.address, tls=services.tls) as client,
    ):
        speeds = {
            name: await compare(console, client, prompt, sampling, speculative) for name, prompt in prompts.items()
        }
    if len(speeds) > 1:
        gains = ", ".join(f"{on / off:.2f} x ({name})" for name, (off, on) in speeds.items())
        console.print(f"\nspeed with speculation against plain decoding: {gains}", soft_wrap=True)


async def compare(
    console: Console, client: AsyncClient, prompt: str, sampling: SamplingParams, speculative: SpeculationParams
) -> tuple[float, float]:
    """Streams one answer, then times several runs with and without speculation.

    Returns tokens per second without and with it. Raises typer.Exit if the output is not the same.
    """
    plain = SpeculationParams(enabled=False)
    console.print(f"\n> {prompt}\n", style="bold", markup=False)
    answer = Completion()
    async for chunk in client.stream(prompt, sampling, speculative):
        answer.add(chunk)
        console.print(colored(chunk, console), end="", soft_wrap=True)
    console.print("\n")
    console.print(legend(), end="\n\n")
    runs: dict[bool, list[Completion]] = {False: [], True: []}
    for _ in range(TIMED_RUNS):
        for params in (plain, speculative):
            run = await client.complete(prompt, sampling, params)
            runs[params.enabled].append(run)
            if run.token_ids != answer.token_ids:
                console.print("[red]the outputs differ with and without speculation[/red]")
                raise typer.Exit(1)
    print_stats(runs[True], f"with speculation, {TIMED_RUNS} timed runs together")
    off, on = tokens_per_second(runs[False]), tokens_per_second(runs[True])
    console.print(f"without speculation: {off:6.1f} tokens/s")
    console.print(f"with speculation:    {on:6.1f} tokens/s  ({on / off:.2f} x), the same output token for token")
    return off, on


def _log_trouble(service: str, line: str) -> None:
    if " INFO " not in line or "converting" in line:
        print(f"{service}: {line}", file=sys.stderr)
