import os
from pathlib import Path

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

API, MODEL, PROMPT, URL = (os.environ[name] for name in ("API", "MODEL", "PROMPT", "URL"))
MODELS = {
    "chat": lambda: ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", streaming=True),
    "responses": lambda: ChatOpenAI(
        model=MODEL, base_url=f"{URL}/v1", api_key="none", streaming=True, use_responses_api=True
    ),
    "messages": lambda: ChatAnthropic(model=MODEL, base_url=URL, api_key="none", streaming=True),
}


def write(path: str, content: str) -> str:
    """Writes a file."""
    Path(path).write_text(content)
    return "written"


result = create_agent(MODELS[API](), [write]).invoke({"messages": [("user", PROMPT)]})
print(result["messages"][-1].text)
