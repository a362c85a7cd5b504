import asyncio
import os
from collections.abc import AsyncIterable
from pathlib import Path

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

API, MODEL, PROMPT, URL = (os.environ[name] for name in ("API", "MODEL", "PROMPT", "URL"))
MODELS = {
    "chat": lambda: OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="none")),
    "responses": lambda: OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="none")),
    "messages": lambda: AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none")),
}
agent = Agent(MODELS[API]())


@agent.tool_plain
def write(path: str, content: str) -> str:
    """Writes a file."""
    Path(path).write_text(content)
    return "written"


async def read(_: RunContext[None], events: AsyncIterable[object]) -> None:
    async for _event in events:
        pass


# `run_stream` would end with the first text.
print(asyncio.run(agent.run(PROMPT, event_stream_handler=read)).output)
