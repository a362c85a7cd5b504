"""The page in a real browser, over a real gateway and real services."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import Trio

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")
from playwright.sync_api import Browser, Page, Route, expect  # noqa: E402

from tests.gateway.browser import GatewayProcess, open_browser, run_gateway  # noqa: E402

pytestmark = pytest.mark.slow

PROMPT = "Count from 1 to 30."
ANSWER_TIMEOUT_MS = 60_000
CHAT = "**/v1/chat/completions"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with contextlib.ExitStack() as stack:
        try:
            browser = stack.enter_context(open_browser())
        except sync_api.Error as error:
            pytest.skip(f"no Chromium starts: make browser ({str(error).splitlines()[0]})")
        yield browser


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, embedded_pair: Trio) -> Iterator[GatewayProcess]:
    with run_gateway(tmp_path_factory.mktemp("gateway"), embedded_pair.address) as started:
        yield started


@pytest.fixture
def blank(browser: Browser) -> Iterator[Page]:
    """A page that must end without a fault of its scripts, and without anything the security policy refused."""
    page = browser.new_page()
    page.set_default_timeout(ANSWER_TIMEOUT_MS)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if "Security Policy" in line.text else None)
    yield page
    page.close()
    assert faults == []


@pytest.fixture
def page(blank: Page, gateway: GatewayProcess) -> Page:
    """The page, connected."""
    open_page(blank, gateway.url)
    expect(blank.locator("#deployment")).to_contain_text("running")
    return blank


def open_page(page: Page, url: str) -> None:
    expect.set_options(timeout=ANSWER_TIMEOUT_MS)
    page.goto(url)


def choose(page: Page, **fields: Any) -> None:
    """Sets the settings of these names."""
    for name, value in fields.items():
        field = page.locator(f"#settings [name={name}]")
        if isinstance(value, bool):
            field.set_checked(value)
        elif name in ("drafter", "num_speculative_tokens", "rule", "tool_choice"):
            field.select_option(str(value))
        else:
            field.fill(str(value))


def send(page: Page, prompt: str = PROMPT) -> None:
    """Sends by the keyboard and waits for the end of the answer, whatever it is."""
    page.fill("#prompt", prompt)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("#send")).to_be_enabled()


def answer_of(page: Page, number: int = -1) -> str:
    """An answer's text without rejected drafts."""
    return page.locator(".answer .text").nth(number).evaluate(
        "text => [...text.children].filter(node => node.localName !== 'del').map(node => node.textContent).join('')"
    )  # fmt: skip


def catch_requests(page: Page) -> list[dict[str, Any]]:
    """Bodies of what the page asks for, as they go."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    return bodies


def test_tokens_show_where_they_come_from(page: Page) -> None:
    choose(page, drafter="model", num_speculative_tokens=5, max_tokens=64)
    send(page)
    origins = {
        name for name in ("accepted", "recovered", "bonus") if page.locator(f".text .token.{name}").count() > 0
    }  # fmt: skip
    assert "accepted" in origins
    assert len(origins) > 1
    rejected = page.locator(".text del.rejected")
    expect(rejected.first).to_have_css("text-decoration-line", "line-through")
    expect(rejected.first).to_have_attribute("title", re.compile("^rejected: the target drew .*round .*draft model"))


def test_what_the_page_shows_is_the_answer(page: Page, gateway: GatewayProcess) -> None:
    prompt = "Write the word for sun in five languages, and an emoji."
    choose(page, num_speculative_tokens=5, max_tokens=64)
    send(page, prompt)
    ask = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 64}
    response = page.request.post(f"{gateway.url}/v1/chat/completions", data=ask)
    assert answer_of(page) == response.json()["choices"][0]["message"]["content"]


def test_rejected_drafts_can_be_hidden(page: Page) -> None:
    choose(page, drafter="model", num_speculative_tokens=5, max_tokens=64)
    send(page)
    expect(page.locator(".text del.rejected").first).to_be_visible()
    page.check("#hide-rejected")
    expect(page.locator(".text del.rejected").first).to_be_hidden()


def test_a_round_tells_its_drafts(page: Page) -> None:
    choose(page, drafter="model", num_speculative_tokens=3, max_tokens=24)
    send(page)
    page.locator(".text .token.accepted").first.click()
    details = page.locator(".round")
    expect(details).to_contain_text(re.compile(r"Round \d+: the draft model proposed 3, [123] accepted; draft .* ms"))
    expect(details.locator("tbody tr")).to_have_count(3)
    page.locator(".strip").focus()
    page.keyboard.press("Home")
    expect(details).to_contain_text("nothing proposed")


def test_an_answer_without_speculation_says_so(page: Page) -> None:
    choose(page, enabled=False, max_tokens=8)
    send(page)
    expect(page.locator(".notice")).to_have_text("Not speculating: speculation is off.")
    expect(page.locator(".text .token")).to_have_count(8)


def test_plain_and_speculative_answers_compare_identical(page: Page) -> None:
    choose(page, compare=True, temperature=0.8, max_tokens=48)
    bodies = catch_requests(page)
    send(page)
    expect(page.locator(".answer")).to_have_count(2)
    expect(page.locator(".verify_result")).to_have_text(re.compile(r"^Identical: \d+ tokens, [\d.]+ times as fast"))
    assert [body["speculation"]["enabled"] for body in bodies] == [False, True]
    assert bodies[0]["seed"] == bodies[1]["seed"]
    assert answer_of(page, 0) == answer_of(page, 1)
    assert page.locator(".answer").first.locator(".token.accepted").count() == 0


def test_answers_are_compared_where_the_page_came_over_plain_http(page: Page) -> None:
    # As at another machine's address: browsers keep this one for what they call secure.
    page.evaluate("delete Crypto.prototype.randomUUID")
    choose(page, compare=True, max_tokens=4)
    bodies = catch_requests(page)
    send(page)
    expect(page.locator(".verify_result")).to_contain_text("Identical: 4 tokens")
    assert bodies[0]["cache_salt"] != bodies[1]["cache_salt"]


def test_a_fault_of_the_page_is_told(page: Page) -> None:
    page.evaluate("void (Crypto.prototype.getRandomValues = () => { throw new Error('no more chance'); })")
    choose(page, compare=True, max_tokens=4)
    send(page)
    expect(page.locator("#error")).to_have_text("no more chance")


def test_the_first_difference_is_marked(page: Page) -> None:
    def reseed(route: Route) -> None:
        body = route.request.post_data_json
        seed = 2 if body["speculation"]["enabled"] else 1
        route.continue_(post_data=json.dumps({**body, "seed": seed}))

    page.route(CHAT, reseed)
    choose(page, compare=True, temperature=2, max_tokens=48)
    send(page)
    expect(page.locator(".verify_result")).to_contain_text(re.compile(r"^First difference at token \d+: “.*” without"))
    number = int(re.findall(r"\d+", page.locator(".verify_result").inner_text())[0])
    for pane in page.locator(".answer").all():
        expect(pane.locator(".differs")).to_have_count(1)
        expect(pane.locator(".token").nth(number - 1)).to_have_class(re.compile("differs"))


def test_controls_send_what_they_say(page: Page) -> None:
    choose(page, drafter="model", num_speculative_tokens=3, rule="rejection", temperature=0.7, seed=11, max_tokens=5)
    bodies = catch_requests(page)
    send(page)
    speculation = {"enabled": True, "drafter": "model", "num_speculative_tokens": 3, "rule": "rejection"}
    expected = {"temperature": 0.7, "seed": 11, "max_tokens": 5, "speculation": speculation}
    assert {name: bodies[0][name] for name in expected} == expected
    choose(page, rule="match", num_speculative_tokens="entropy")
    send(page)
    expected = {**speculation, "num_speculative_tokens": "entropy", "rule": "match"}
    assert bodies[1]["speculation"] == expected
    # The server's own rule, as the server has it.
    choose(page, num_speculative_tokens="adaptive")
    send(page)
    bounds = {"draft_min": 0, "draft_max": 8, "entropy_beta": None}
    assert bodies[2]["speculation"] == {**expected, "num_speculative_tokens": "adaptive", **bounds}


def test_a_chat_remembers_and_forgets(page: Page) -> None:
    choose(page, max_tokens=8)
    bodies = catch_requests(page)
    send(page)
    said = answer_of(page)
    send(page, "Go on.")
    assert [each["content"] for each in bodies[1]["messages"]] == [PROMPT, said, "Go on."]
    page.click("#clear")
    send(page, "Hello.")
    assert bodies[2]["messages"] == [{"role": "user", "content": "Hello."}]
    expect(page.locator(".turn")).to_have_count(1)


def test_raw_text_is_continued_as_it_is(page: Page) -> None:
    page.check("[name=mode][value=text]")
    choose(page, max_tokens=8)
    bodies = catch_requests(page)
    send(page, "1, 2, 3, 4,")
    assert bodies[0]["prompt"] == "1, 2, 3, 4,"
    assert answer_of(page).startswith(" 5")


def test_escape_stops_and_keeps_what_came(page: Page) -> None:
    choose(page, max_tokens=900)
    page.fill("#prompt", "Tell a long story about a lighthouse.")
    page.click("#send")
    expect(page.locator(".text .token").nth(4)).to_be_attached()
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text(re.compile(r"Stopped after \d+ tokens\."))
    assert len(answer_of(page)) > 0
    expect(page.locator("#send")).to_be_enabled()


def test_markup_in_a_prompt_is_text(page: Page) -> None:
    markup = "<img src=x><b>bold</b>"
    choose(page, max_tokens=8)
    send(page, markup)
    assert page.locator(".prompt").text_content() == markup
    assert page.locator("#conversation img, #conversation b").count() == 0


def test_a_full_server_says_when_to_come_again(page: Page) -> None:
    # A stand-in: to fill a real server takes as long as it is slow.
    body = json.dumps({"error": {"message": "the queue is full"}})
    page.route(CHAT, lambda route: route.fulfill(status=429, headers={"Retry-After": "7"}, body=body))
    send(page)
    expect(page.locator("#error")).to_have_text("The server is busy: try again in 7 s. (the queue is full)")
    expect(page.locator("#prompt")).to_have_value(PROMPT)


def test_an_error_in_mid_stream_keeps_the_text_before_it_as_text(page: Page) -> None:
    # A stand-in: a coordinator waits minutes for a target that goes away.
    chunk = {"choices": [{"index": 0, "delta": {"content": "One, <b>two</b>"}, "finish_reason": None}]}
    events = [chunk, {"error": {"message": "the target server went away"}}]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
    page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=body))
    send(page)
    expect(page.locator(".answer .error")).to_have_text("the target server went away")
    assert answer_of(page) == "One, <b>two</b>"


def test_bad_settings_are_refused_in_the_servers_words(page: Page) -> None:
    choose(page, drafter="custom")
    send(page)
    expect(page.locator("#error")).to_contain_text("custom")


def test_a_gateway_that_is_gone_is_an_error_in_words(blank: Page, embedded_pair: Trio, tmp_path: Path) -> None:
    with run_gateway(tmp_path, embedded_pair.address) as started:
        open_page(blank, started.url)
        expect(blank.locator("#deployment")).to_contain_text("running")
    send(blank)
    expect(blank.locator("#error")).to_contain_text("The gateway does not answer.")
    expect(blank.locator("#prompt")).to_have_value(PROMPT)


def test_a_gateway_with_keys_asks_for_one(blank: Page, embedded_pair: Trio, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ada sha256:{hashlib.sha256(b'open-sesame').hexdigest()}\n")
    with run_gateway(tmp_path, embedded_pair.address, "--api-keys", str(keys)) as started:
        open_page(blank, started.url)
        expect(blank.locator("#error")).to_have_text("This gateway asks for a key.")
        for key, words in (("wrong", "The gateway refused the key."), ("open-sesame", "")):
            blank.fill("#key", key)
            blank.keyboard.press("Enter")
            expect(blank.locator("#error")).to_have_text(words)
        expect(blank.locator("#key-form")).to_be_hidden()
        choose(blank, max_tokens=8)
        send(blank)
        expect(blank.locator(".text .token").first).to_be_attached()
        assert blank.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_nothing_is_wider_than_a_narrow_screen(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.locator("#fold").evaluate("fold => fold.open = true")
    choose(page, compare=True, max_tokens=48)
    send(page, "Write one word of two hundred letters: " + "a" * 200)
    page.locator(".text .token").last.click()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
