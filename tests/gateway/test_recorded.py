"""What unmodified clients sent (python -m tests.clients --record) is read, and each request begins with the one before."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from paceline.v1 import generation_pb2
from tests.gateway.fake_coordinator import FakeCoordinator

RECORDED = sorted(Path(__file__).parent.joinpath("recorded").glob("*.json"))
HOSTED = ("web_search",)


@pytest.fixture(params=RECORDED, ids=[each.stem for each in RECORDED])
def conversations(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """Requests in order, by what the client met."""
    return dict(json.loads(request.param.read_text()))


async def test_what_clients_send_reaches_the_coordinator_whole(
    fake_http: httpx2.AsyncClient, coordinator: FakeCoordinator, conversations: dict[str, list[dict[str, Any]]]
) -> None:
    for requests in conversations.values():
        chats: list[generation_pb2.Chat] = []
        for each in requests:
            response = await fake_http.post(each["path"], json=each["body"])
            assert response.status_code == 200, response.text
            chats.append(coordinator.asked[-1].chat)
            left_out = response.headers.get("x-paceline-left-out", "")
            read = "".join(message.reasoning + message.content for message in chats[-1].messages)
            assert_in_order(texts(each["body"]), read)
            assert tool_names(chats[-1]) == offered(each["body"].get("tools") or [], left_out.split(", "))
        for before, after in itertools.pairwise(chats):
            assert after.tools == before.tools
            assert list(after.messages)[: len(before.messages)] == list(before.messages)
        called = [call.id for message in chats[-1].messages for call in message.tool_calls]
        results = [message.tool_call_id for message in chats[-1].messages if message.role == "tool"]
        assert called == results
        assert bool(called) == bool(chats[-1].tools)


def tool_names(chat: generation_pb2.Chat) -> list[str]:
    return [each["function"]["name"] for each in json.loads(chat.tools or "[]")]


def offered(tools: list[dict[str, Any]], left_out: list[str]) -> list[str]:
    """Returns the names that the model gets."""
    names: list[str] = []
    for tool in tools:
        if tool.get("type") in HOSTED:
            assert tool["type"] in left_out
        elif tool.get("type") == "namespace":
            names += (f"{tool['name']}__{each['name']}" for each in tool["tools"])
        else:
            names.append(tool.get("function", tool)["name"])
    return names


def texts(body: dict[str, Any]) -> Iterator[str]:
    """Yields what the model has to read, in the client's order."""
    for message in (body.get("system", []), *body.get("messages", []), *body.get("input", [])):
        content = message
        if isinstance(message, dict):
            yield message.get("reasoning_content") or ""
            content = message.get("content", message.get("output"))
        for part in content if isinstance(content, list) else [content or ""]:
            text = part if isinstance(part, str) else part.get("text") or part.get("thinking") or ""
            # It changes with every session, and says nothing.
            if not text.startswith("x-anthropic-billing-header:"):
                yield text


def assert_in_order(parts: Iterable[str], whole: str) -> None:
    end = 0
    for part in parts:
        at = whole.find(part, end)
        assert at >= 0, part
        end = at + len(part)
