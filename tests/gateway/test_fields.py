"""The table of fields: taken, refused by name, ignored. A row each."""

from typing import Any

import httpx2
import pytest

from gateway.dialects.chat import FIELDS as CHAT
from gateway.dialects.completions import FIELDS as TEXT
from gateway.fields import COMMON, IGNORED, REFUSED, SAMPLING
from gateway.format_fields import FORMATS

CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"
CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "t1 t2"}], "max_tokens": 6, "temperature": 0}
TEXT_BODY: dict[str, Any] = {"prompt": "t1 t2", "max_tokens": 6, "temperature": 0}
SAMPLED = {"temperature": 1, "seed": 3}
# For each field that is taken, a body that must give another answer, and what it must give the same as, if anything.
CHANGES: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1, "seed": 5},
    "top_p": {**SAMPLED, "top_p": 0.01},
    "top_k": {**SAMPLED, "top_k": 1},
    "min_p": {**SAMPLED, "min_p": 1},
    "seed": {"temperature": 1, "seed": 11},
    "n": {"n": 2},
    "presence_penalty": {"presence_penalty": 2, "allowed_token_ids": [7, 9, 11]},
    "frequency_penalty": {"frequency_penalty": 2, "allowed_token_ids": [7, 9, 11]},
    "repetition_penalty": {"repetition_penalty": 50, "allowed_token_ids": [7, 9, 11]},
    "logit_bias": {"logit_bias": {"7": 100}},
    "stop_token_ids": {"stop_token_ids": list(range(512))},
    "allowed_token_ids": {"allowed_token_ids": [9]},
    "banned_token_ids": {"banned_token_ids": list(range(400))},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": list(range(511))},
    "ignore_eos": {"ignore_eos": True, "logit_bias": {"0": 100}},
    "max_tokens": {"max_tokens": 3},
    "n_predict": {"n_predict": 3, "max_tokens": None},
    "repeat_penalty": {"repeat_penalty": 50, "allowed_token_ids": [7, 9, 11]},
}
SAME: dict[str, dict[str, Any]] = {
    "top_p": {"temperature": 0}, "top_k": {"temperature": 0}, "min_p": {"temperature": 0},
    "n_predict": {"max_tokens": 3}, "repeat_penalty": {"repetition_penalty": 50, "allowed_token_ids": [7, 9, 11]},
}  # fmt: skip
# Tested where what they do shows: streams, usage, traces, echo, log-probabilities, speculation, names, formats, tools, reasoning.
ELSEWHERE = {
    "model", "stream", "stream_options", "speculation", "prediction", "trace", "request_id", "cache_salt", "messages",
    "max_completion_tokens", "logprobs", "top_logprobs", "chat_template_kwargs", "add_generation_prompt",
    "continue_final_message",
    "parse_special_tokens", "prompt", "echo", "stop", "best_of", "response_format", "structured_outputs", *FORMATS,
    "suffix", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort",
}  # fmt: skip


async def answer(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return {"choices": found["choices"], "completion_tokens": found["usage"]["completion_tokens"]}


def test_every_field_that_is_taken_has_a_row() -> None:
    assert CHAT.taken.keys() | TEXT.taken.keys() == CHANGES.keys() | ELSEWHERE
    tables = (SAMPLING.keys(), COMMON.keys(), REFUSED.keys(), IGNORED.keys())
    assert sum(map(len, tables)) == len(set().union(*tables)), "a field in two tables"


@pytest.mark.parametrize("name", CHANGES)
async def test_a_field_that_is_taken_changes_the_answer(http: httpx2.AsyncClient, name: str) -> None:
    for path, body in (("/v1/chat/completions", CHAT_BODY), ("/v1/completions", TEXT_BODY)):
        beside = {key: value for key, value in CHANGES[name].items() if key != name}
        changed = await answer(http, path, {**body, **CHANGES[name]})
        if name in SAME:
            assert changed == await answer(http, path, {**body, **SAME[name]})
        else:
            assert changed != await answer(http, path, {**body, **beside})


@pytest.mark.parametrize("name", REFUSED)
async def test_a_field_that_is_refused_is_named(http: httpx2.AsyncClient, name: str) -> None:
    for path, body in ((CHATS, CHAT_BODY), (TEXTS, TEXT_BODY)):
        if name in (CHAT if path == CHATS else TEXT).taken:
            continue
        response = await http.post(path, json={**body, name: "something special"})
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"], error["type"]) == (name, "unsupported_field", "invalid_request_error")
        assert name in error["message"]
        for neutral in (*REFUSED[name], None):
            assert (await http.post(path, json={**body, name: neutral})).status_code == 200, neutral


@pytest.mark.parametrize("name", IGNORED)
async def test_a_field_that_is_ignored_changes_nothing(http: httpx2.AsyncClient, name: str) -> None:
    for path, body in (("/v1/chat/completions", CHAT_BODY), ("/v1/completions", TEXT_BODY)):
        assert await answer(http, path, {**body, name: {"any": "thing"}}) == await answer(http, path, body)


# What llama.vim sends for `:LlamaInstruct`. An error here makes it replace the user's lines by nothing.
LLAMA_VIM = {
    "id_slot": 0, "n_keep": 0, "cache_prompt": True, "samplers": [], "stream": False, "lora": [],
    "response_fields": ["content"], "timings_per_token": True, "return_progress": True, "model": "",
    "dry_multiplier": 0.0, "dry_base": 1.75, "xtc_probability": 0, "xtc_threshold": 0.1, "dynatemp_range": 0,
}  # fmt: skip


@pytest.mark.parametrize("path", [CHATS, TEXTS])
async def test_what_clients_of_llama_cpp_send_changes_nothing(http: httpx2.AsyncClient, path: str) -> None:
    body = CHAT_BODY if path == CHATS else TEXT_BODY
    assert await answer(http, path, {**body, **LLAMA_VIM}) == await answer(http, path, body)


@pytest.mark.parametrize("path", [CHATS, TEXTS])
async def test_a_length_of_minus_1_is_the_models(http: httpx2.AsyncClient, path: str) -> None:
    body = {**(CHAT_BODY if path == CHATS else TEXT_BODY), "max_tokens": -1, "stop_token_ids": list(range(512))}
    assert (await answer(http, path, body))["completion_tokens"] == 1
    response = await http.post(path, json={**body, "max_tokens": -3})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


async def test_a_bad_repeat_penalty_is_refused_by_its_own_name(http: httpx2.AsyncClient) -> None:
    response = await http.post(CHATS, json={**CHAT_BODY, "repeat_penalty": 1000})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "repeat_penalty")


async def test_a_field_that_nobody_knows_is_refused(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/completions", json={**TEXT_BODY, "temprature": 0.1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temprature"


async def test_stop_strings_alone_and_in_lists(http: httpx2.AsyncClient) -> None:
    whole = (await answer(http, "/v1/completions", TEXT_BODY))["choices"][0]["text"]
    stop = whole.split()[2]
    for given in (stop, [stop, "never"]):
        choice = (await answer(http, "/v1/completions", {**TEXT_BODY, "stop": given}))["choices"][0]
        assert choice["text"] == whole[: whole.index(stop)]
        assert choice["finish_reason"] == "stop"


def as_floats(value: Any) -> Any:
    """As JSON is written where all numbers are floats."""
    if isinstance(value, dict):
        return {name: as_floats(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_floats(each) for each in value]
    return float(value) if type(value) is int else value


SAMPLING_NUMBERS: dict[str, Any] = {
    "n": 2, "seed": 2**40 + 1, "top_k": 9, "min_tokens": 2, "stop_token_ids": [5, 6], "temperature": 1,
    "allowed_token_ids": list(range(40)), "banned_token_ids": [3], "logit_bias": {"7": 2}, "presence_penalty": 1,
}  # fmt: skip
NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": (CHATS, {**CHAT_BODY, **SAMPLING_NUMBERS, "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 2}),
    "a text": (TEXTS, {**TEXT_BODY, **SAMPLING_NUMBERS, "logprobs": 2, "best_of": 2}),
    "ids": (TEXTS, {**TEXT_BODY, "prompt": [5, 6, 7]}),
    "lists of ids": (TEXTS, {**TEXT_BODY, "prompt": [[5, 6], [7]]}),
    "a number of drafts": (TEXTS, {**TEXT_BODY, "speculation": {"drafter": "ngram", "num_speculative_tokens": 3, "lenience": 1}}),
    "bounds": (TEXTS, {**TEXT_BODY, "speculation": {"num_speculative_tokens": "adaptive", "draft_min": 1, "draft_max": 3}}),
    "what is refused otherwise": (TEXTS, {**TEXT_BODY, "length_penalty": 1, "repeat_penalty": 1, "mirostat": 0}),
    "tokens": ("/detokenize", {"tokens": [5, 6, 7]}),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
async def test_whole_numbers_may_be_written_as_floats(http: httpx2.AsyncClient, name: str) -> None:
    path, body = NUMBERS[name]
    found = [await http.post(path, json=each) for each in (body, as_floats(body))]
    assert [each.status_code for each in found] == [200, 200], found[1].text
    kept = [{key: found.json().get(key) for key in ("choices", "prompt")} for found in found]
    assert kept[0] == kept[1]


FRACTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (TEXTS, {name: 1.5}) for name in ("n", "seed", "top_k", "min_tokens", "max_tokens", "logprobs", "best_of")},
    **{name: (CHATS, {"logprobs": True, name: 1.5}) for name in ("max_completion_tokens", "top_logprobs")},
    **{name: (TEXTS, {name: [1.5]}) for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "prompt")},
    **{f"speculation.{name}": (TEXTS, {"speculation": {name: 1.5}}) for name in ("num_speculative_tokens", "draft_max")},
}  # fmt: skip


@pytest.mark.parametrize("name", FRACTIONS)
async def test_a_number_that_is_not_whole_is_refused_where_a_whole_one_is_due(
    http: httpx2.AsyncClient, name: str
) -> None:
    path, change = FRACTIONS[name]
    response = await http.post(path, json={**(CHAT_BODY if path == CHATS else TEXT_BODY), **change})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == name


async def test_best_of_is_taken_where_it_asks_for_what_n_gives(http: httpx2.AsyncClient) -> None:
    for path, body in ((CHATS, CHAT_BODY), (TEXTS, TEXT_BODY)):
        body = {**body, "n": 2, "temperature": 1, "seed": 3}
        assert await answer(http, path, {**body, "best_of": 2}) == await answer(http, path, body)
        for wrong in ({"n": 2, "best_of": 1}, {"n": 2, "best_of": 3}, {"n": None, "best_of": 2}, {"best_of": "2"}):
            response = await http.post(path, json={**body, **wrong})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "best_of"


@pytest.mark.parametrize(
    ("old", "value", "new"), [("functions", [{"name": "f"}], "tools"), ("function_call", {"name": "f"}, "tool_choice")]
)
async def test_a_refusal_of_functions_tells_to_use_tools(
    http: httpx2.AsyncClient, old: str, value: Any, new: str
) -> None:
    response = await http.post(CHATS, json={**CHAT_BODY, old: value})
    assert response.json()["error"]["message"] == f"{old} is not supported; use {new}"
    response = await http.post(TEXTS, json={**TEXT_BODY, old: value})
    assert "; it must be" in response.json()["error"]["message"]


async def test_a_top_p_of_0_gives_the_greedy_answer(http: httpx2.AsyncClient) -> None:
    for path, body in (("/v1/chat/completions", CHAT_BODY), ("/v1/completions", TEXT_BODY)):
        drawn = await answer(http, path, {**body, "temperature": 2, "seed": 3, "top_p": 0})
        assert drawn == await answer(http, path, body)


async def test_max_completion_tokens_is_the_newer_name(http: httpx2.AsyncClient) -> None:
    body = {**CHAT_BODY, "max_completion_tokens": 3, "ignore_eos": True}
    assert (await answer(http, "/v1/chat/completions", body))["completion_tokens"] == 3


BAD_VALUES: dict[str, tuple[dict[str, Any], str, str]] = {
    "temperature": ({"temperature": -1}, "temperature", ">= 0"),
    "temperature as a text": ({"temperature": "hot"}, "temperature", "a number"),
    "top_p": ({"top_p": 2}, "top_p", "in [0, 1]"),
    "n": ({"n": 0}, "n", "in [1, 64]"),
    "n as true": ({"n": True}, "n", "a whole number"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens", "1"),
    "max_tokens as a text": ({"max_tokens": "many"}, "max_tokens", "a whole number"),
    "stop": ({"stop": 5}, "stop", "texts"),
    "logit_bias key": ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
    "logit_bias value": ({"logit_bias": {"5": 1000}}, "logit_bias[5]", "[-100, 100]"),
    "token outside": ({"allowed_token_ids": [512]}, "allowed_token_ids", "[0, 512)"),
    "a token id as true": ({"stop_token_ids": [True]}, "stop_token_ids", "token ids"),
    "stream": ({"stream": "yes"}, "stream", "true or false"),
    "stream_options without a stream": ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    "stream_options": ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
    "speculation": ({"speculation": {"k": 4}}, "speculation.k", "num_speculative_tokens"),
    "drafter": ({"speculation": {"drafter": "oracle"}}, "speculation.drafter", "ngram"),
    "num_speculative_tokens": ({"speculation": {"num_speculative_tokens": 17}}, "speculation.num_speculative_tokens", "[0, 16]"),
    "rule": ({"speculation": {"rule": "maybe"}}, "speculation.rule", "match"),
    "lenience": ({"speculation": {"lenience": 0}}, "speculation.lenience", "(0, 1]"),
    "draft_min": ({"speculation": {"num_speculative_tokens": "adaptive", "draft_min": 9}}, "speculation.draft_min", "[0, draft_max], which is 8"),
    "draft_min beside a number": (
        {"speculation": {"num_speculative_tokens": 4, "draft_min": 2}}, "speculation.draft_min", "unless num_speculative_tokens is adaptive or entropy",
    ),
    "draft_max as a text": ({"speculation": {"num_speculative_tokens": "entropy", "draft_max": "6"}}, "speculation.draft_max", "a whole number"),
    "draft_max alone": ({"speculation": {"draft_max": 6}}, "speculation.draft_max", "unless num_speculative_tokens is adaptive or entropy"),
    "entropy_beta": ({"speculation": {"num_speculative_tokens": "entropy", "entropy_beta": 1}}, "speculation.entropy_beta", "[0, 1)"),
    "entropy_beta without entropy": (
        {"speculation": {"num_speculative_tokens": "adaptive", "entropy_beta": 0.5}}, "speculation.entropy_beta", "unless num_speculative_tokens is entropy",
    ),
    "draft_temperature": ({"speculation": {"draft_temperature": 0}}, "speculation.draft_temperature", "> 0"),
    "draft_temperature without draws": (
        {"temperature": 0, "speculation": {"draft_temperature": 0.5}}, "speculation.draft_temperature", "left out",
    ),
    "draft_model": ({"speculation": {"draft_model": "another"}}, "speculation.draft_model", "one of dummy:tiny"),
    "draft_model's type": ({"speculation": {"draft_model": 5}}, "speculation.draft_model", "a text"),
    "draft_model without a model": ({"speculation": {"draft_model": "dummy:tiny", "drafter": "ngram"}}, "speculation.draft_model", "left out with drafter ngram"),
    "a trace of a whole answer": ({"trace": True}, "trace", "needs stream"),
    "prediction": ({"prediction": {"type": "content", "content": 5}}, "prediction.content", "a string"),
    "request_id": ({"request_id": "x" * 300}, "request_id", "256"),
    "cache_salt": ({"cache_salt": "x" * 257}, "cache_salt", "256"),
    "cache_salt's type": ({"cache_salt": 7}, "cache_salt", "a string"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_VALUES)
async def test_a_bad_value_is_refused_by_its_field_and_its_range(http: httpx2.AsyncClient, name: str) -> None:
    change, param, allowed = BAD_VALUES[name]
    for path, body in (("/v1/chat/completions", CHAT_BODY), ("/v1/completions", TEXT_BODY)):
        response = await http.post(path, json={**body, **change})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert allowed in error["message"]
        assert param in error["message"]


# By the words of gRPC, and of the checks behind it, they are called otherwise.
OTHER_NAMES: dict[str, tuple[str, dict[str, Any], str]] = {
    "the newer max_tokens": (CHATS, {**CHAT_BODY, "max_completion_tokens": 0}, "max_completion_tokens"),
    "the older max_tokens": (CHATS, {**CHAT_BODY, "max_tokens": 0}, "max_tokens"),
    "top_logprobs": (CHATS, {**CHAT_BODY, "logprobs": True, "top_logprobs": 30}, "top_logprobs"),
    "logprobs": (TEXTS, {**TEXT_BODY, "logprobs": 30, "echo": True}, "logprobs"),
    "an id": (TEXTS, {**TEXT_BODY, "prompt": [999999]}, "prompt"),
    "an id to echo": (TEXTS, {**TEXT_BODY, "prompt": [999999], "echo": True}, "prompt"),
    "too many ids": (TEXTS, {**TEXT_BODY, "prompt": [1] * 600}, "prompt"),
    "a long text": (TEXTS, {**TEXT_BODY, "prompt": "x" * 1_000_000}, "prompt"),
    "no text": (TEXTS, {**TEXT_BODY, "prompt": ""}, "prompt"),
    "a long chat": (CHATS, {**CHAT_BODY, "messages": [{"role": "user", "content": "x" * 1_000_000}]}, "messages"),
    "too many tokens": (CHATS, {**CHAT_BODY, "messages": [{"role": "user", "content": "t1 " * 600}]}, "messages"),
    "a reserved option": (CHATS, {**CHAT_BODY, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    "a drafter that is not there": (TEXTS, {**TEXT_BODY, "speculation": {"drafter": "custom"}}, "speculation.drafter"),
    "a text to tokenize": ("/tokenize", {"prompt": "x" * 1_000_000}, "prompt"),
    "a chat to tokenize": ("/tokenize", {"messages": [{"role": "user", "content": "x" * 1_000_000}]}, "messages"),
    "an id to detokenize": ("/detokenize", {"tokens": [999999]}, "tokens"),
    "too many ids to detokenize": ("/detokenize", {"tokens": [1] * 600}, "tokens"),
}


@pytest.mark.parametrize("name", OTHER_NAMES)
async def test_errors_name_fields_as_the_request_does(http: httpx2.AsyncClient, name: str) -> None:
    path, body, param = OTHER_NAMES[name]
    response = await http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]


async def test_an_error_behind_the_first_chunk_names_the_field_too(http: httpx2.AsyncClient) -> None:
    body = {**TEXT_BODY, "prompt": [[5], [999999]], "stream": True}
    events = (await http.post(TEXTS, json=body)).text
    assert '"param":"prompt"' in events


BAD_CHATS: dict[str, tuple[Any, str]] = {
    "no messages": ([], "messages"),
    "messages as a text": ("hello", "messages"),
    "an unknown role": ([{"role": "robot", "content": "x"}], "messages[0].role"),
    "a role that is no text": ([{"role": [], "content": "x"}], "messages[0].role"),
    "no content": ([{"role": "user"}], "messages[0].content"),
    "a picture": ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
    "a tool's call": ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls[0].function"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CHATS)
async def test_a_bad_chat_is_refused_by_its_place(http: httpx2.AsyncClient, name: str) -> None:
    messages, param = BAD_CHATS[name]
    response = await http.post("/v1/chat/completions", json={**CHAT_BODY, "messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("prompt", [None, 5, [], [[]], [1.5], ["a", 3], [-1], {"text": "x"}])
async def test_a_bad_prompt_is_refused(http: httpx2.AsyncClient, prompt: Any) -> None:
    response = await http.post("/v1/completions", json={**TEXT_BODY, "prompt": prompt})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "prompt"
