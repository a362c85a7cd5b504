import asyncio
import os
from pathlib import Path

import agents
import openai

API, MODEL, PROMPT, URL = (os.environ[name] for name in ("API", "MODEL", "PROMPT", "URL"))
MODELS = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}


@agents.function_tool
def write(path: str, content: str) -> str:
    """Writes a file."""
    Path(path).write_text(content)
    return "written"


async def main() -> None:
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none")
    agent = agents.Agent("writer", tools=[write], model=MODELS[API](MODEL, client))
    result = agents.Runner.run_streamed(agent, PROMPT)
    async for _ in result.stream_events():
        pass
    print(result.final_output)


asyncio.run(main())
