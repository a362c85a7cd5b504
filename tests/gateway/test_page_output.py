"""The page's schema and tools, in a real browser over real services."""

import json
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")
from playwright.sync_api import Page, expect

from tests.gateway.test_page import (  # noqa: F401 fixtures
    answer_of,
    blank,
    browser,
    catch_requests,
    choose,
    gateway,
    page,
    send,
)

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "tags": {"type": "array", "items": {"enum": ["big", "old"]}, "maxItems": 2}},
    "required": ["city", "tags"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}]


def test_an_answer_keeps_to_the_schema(page: Page) -> None:  # noqa: F811
    choose(page, schema=json.dumps(SCHEMA), max_tokens=100)
    send(page)
    assert set(json.loads(answer_of(page))) == {"city", "tags"}
    expect(page.locator(".text .token.forced").first).to_be_visible()
    expect(page.locator(".notice")).not_to_contain_text("Not enforced")


def test_what_was_not_enforced_is_said(page: Page) -> None:  # noqa: F811
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    choose(page, schema=json.dumps(schema))
    send(page)
    expect(page.locator(".notice")).to_contain_text('Not enforced: Unimplemented keys: ["uniqueItems"].')


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("schema", '{"type": ', "Not a JSON object"),
        ("schema", "[1]", "Not a JSON object"),
        ("schema", "null", "Not a JSON object"),
        ("tools", "{}", "Not a JSON list"),
        ("tools", "find", "Not a JSON list"),
    ],
)
def test_other_text_is_told_at_the_box_and_not_sent(page: Page, name: str, text: str, words: str) -> None:  # noqa: F811
    bodies = catch_requests(page)
    choose(page, **{name: text})
    page.fill("#prompt", "Hi")
    page.keyboard.press("Control+Enter")
    box = page.locator(f"#settings [name={name}]")
    assert box.evaluate("box => box.validationMessage") == words
    choose(page, **{name: ""})
    assert box.evaluate("box => box.validationMessage") == ""
    assert bodies == []


def test_a_servers_error_is_shown(page: Page) -> None:  # noqa: F811
    choose(page, schema='{"type": "object", "properties": 3}')
    send(page)
    expect(page.locator("#error")).to_contain_text("json_schema")


def test_a_call_is_shown_and_its_result_goes_back(page: Page) -> None:  # noqa: F811
    bodies = catch_requests(page)
    choose(page, tools=json.dumps(TOOLS), tool_choice="required", max_tokens=200)
    send(page, "Find a city.")
    asked: dict[str, Any] = bodies[0]
    assert (asked["tools"], asked["tool_choice"]) == (TOOLS, "required")
    call = page.locator(".call").first
    expect(call.locator("b")).to_have_text("find")
    expect(page.locator(".text del")).to_have_count(0)
    shown = page.locator(".call code").all_inner_texts()
    assert all(set(json.loads(each)) == {"city", "tags"} for each in shown)
    choose(page, tool_choice="none", max_tokens=8)
    for at in range(len(shown)):
        page.locator(".results textarea").nth(at).fill(f"result {at}")
    page.get_by_role("button", name="Send results").click()
    expect(page.locator(".answer")).to_have_count(2)
    expect(page.locator("#stop")).to_be_disabled()
    messages = bodies[1]["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", *["tool"] * len(shown)]
    calls = messages[1]["tool_calls"]
    assert [each["function"]["arguments"] for each in calls] == shown
    assert [(each["tool_call_id"], each["content"]) for each in messages[2:]] == [
        (call["id"], f"result {at}") for at, call in enumerate(calls)
    ]
    # The conversation has gone on.
    expect(page.locator(".results")).to_have_count(0)
    assert answer_of(page)


def test_reasoning_is_apart_from_the_answer(page: Page) -> None:  # noqa: F811
    chunks = [{"reasoning_content": "Two and"}, {"reasoning_content": " two."}, {"content": "Four."}, {}]
    events = [{"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in chunks]
    events[-1]["choices"][0]["finish_reason"] = "stop"
    for at, (text, origin) in enumerate((("Two and", "target"), (" two.", "accepted"), ("Four.", "target"))):
        emitted = [{"token_id": at, "text": text, "origin": origin}]
        events[at]["choices"][0]["paceline"] = {
            "round": at, "drafter": "none", "reason": "", "draft_tokens": 0, "proposed": [], "emitted": emitted,
            "num_accepted": 0, "entropies": [], "smoothed_entropies": [], "allowed_draft_tokens": [],
            "ms": {"draft": 0, "target": 1, "queued": 0, "rpc": 0},
        }  # fmt: skip
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    bodies = catch_requests(page)
    send(page)
    expect(page.locator(".text .reasoning")).to_have_text(["Two and", " two."])
    assert page.locator(".text").inner_text() == "Two and two.\n\nFour."
    send(page)
    # It is not sent back: the answer is what was said.
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "Four."}
