import asyncio
import os
from pathlib import Path

from pydantic_ai import Agent
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


async def main() -> None:
    async with agent.run_stream(PROMPT) as result:
        print(await result.get_output())


asyncio.run(main())
