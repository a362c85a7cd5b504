"""`paceline chat`: a conversation in the terminal."""

from typing import Any

from rich.console import Console

from paceline.cli import options
from paceline.cli.printing import coloured
from paceline.client import AsyncClient, Completion
from paceline.sampling import SamplingParams


def chat(
    address: options.Address = options.DEFAULT_ADDRESS,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    speculation: options.SpeculationSwitch = None,
    drafter: options.DrafterName = None,
    draft_tokens: options.DraftTokens = None,
    rule: options.RuleName = None,
    coupled: options.Coupled = False,
) -> None:
    """Talks with the target model, turn by turn. An empty line or Ctrl-D ends it."""
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    given = options.given_speculation(speculation, drafter, draft_tokens, rule, coupled)
    options.run(_run(address, sampling, given))


async def _run(address: str, sampling: SamplingParams, given: dict[str, Any]) -> None:
    console = Console(highlight=False)
    messages: list[dict[str, str]] = []
    async with AsyncClient(address) as client:
        # Who is not there is said before the user writes anything.
        await client.describe()
        speculation = await options.resolve_speculation(client, given)
        while question := _ask(console):
            messages.append({"role": "user", "content": question})
            answer = Completion()
            async for piece in client.stream(messages, sampling, speculation):
                answer.add(piece)
                console.print(coloured(piece), end="", soft_wrap=True)
            console.print("\n")
            messages.append({"role": "assistant", "content": answer.text})


def _ask(console: Console) -> str:
    try:
        return console.input("[bold]> [/bold]").strip()
    except EOFError:
        return ""
