"""/v1/completions: texts, lists of token ids, echo and its log-probabilities."""

import json
from typing import Any

import httpx2
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.client import Client
from paceline.engine.models.weights import find_folder
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.conftest import TINY
from tests.gateway.conftest import RunningGateway, StartGateway
from tests.hosted import Host

PLAIN = SpeculationParams(enabled=False)
MODEL_LEN = 64
SHORT = (*TINY, "--max-model-len", str(MODEL_LEN))


def test_prompts_of_all_kinds_give_a_choice_each(client: openai.OpenAI, gateway_service: RunningGateway) -> None:
    with Client(gateway_service.trio.address) as grpc:
        wanted = grpc.complete("t3 t1 t4", SamplingParams(max_tokens=6), PLAIN, raw=True).text
        ids = grpc.tokenize("t3 t1 t4", raw=True)
    for prompt in ("t3 t1 t4", ids, ["t3 t1 t4", "t3 t1 t4"], [ids, ids]):
        done = client.completions.create(model="dummy:tiny", prompt=prompt, max_tokens=6, temperature=0)
        assert {choice.text for choice in done.choices} == {wanted}
        assert [choice.index for choice in done.choices] == list(range(len(done.choices)))
        assert done.usage is not None
        assert done.usage.prompt_tokens == len(ids) * len(done.choices)


def test_streams_of_several_prompts_tell_their_choices_apart(client: openai.OpenAI) -> None:
    asked: Any = {"model": "dummy:tiny", "prompt": ["t3 t1", "t4 t5"], "max_tokens": 5, "temperature": 0, "n": 2}
    whole = client.completions.create(**asked)
    texts = [""] * 4
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_without_a_limit_sixteen_tokens_come(client: openai.OpenAI) -> None:
    done = client.completions.create(model="dummy:tiny", prompt="t1", extra_body={"ignore_eos": True})
    assert done.usage is not None
    assert done.usage.completion_tokens == 16


def test_echo_puts_the_prompt_in_front(real_client: openai.OpenAI) -> None:
    asked: Any = {"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 4, "temperature": 0}
    alone = real_client.completions.create(**asked)
    echoed = real_client.completions.create(**asked, echo=True)
    assert echoed.choices[0].text == "The sky is" + alone.choices[0].text
    nothing = real_client.completions.create(**{**asked, "max_tokens": 0}, echo=True)
    assert nothing.choices[0].text == "The sky is"
    assert nothing.usage is not None
    assert nothing.usage.completion_tokens == 0
    streamed = real_client.completions.create(**asked, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == echoed.choices[0].text


def test_scores_of_a_prompt_are_those_of_transformers(real_client: openai.OpenAI) -> None:
    """As an evaluation harness asks: prompts as ids, one token more, the arrays one longer than the prompt."""
    folder = find_folder("smollm2-135m", torch.float32, print)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer("The capital of France is Paris, and “naïve” is a word.")["input_ids"]
    with torch.inference_mode():
        wanted = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    done = real_client.completions.create(
        model="smollm2-135m", prompt=ids, max_tokens=1, temperature=0, logprobs=1, echo=True, seed=1234
    )
    found = done.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    assert len(found.token_logprobs) == len(found.top_logprobs) == len(ids) + 1
    assert found.token_logprobs[0] is None
    scores = [wanted[at, token].item() for at, token in enumerate(ids[1:])]
    assert found.token_logprobs[1:-1] == pytest.approx(scores, abs=1e-3)
    for at, (logprob, likeliest) in enumerate(zip(found.token_logprobs[1:-1], found.top_logprobs[1:-1], strict=True)):
        # The same float, not one beside it: so the harness sees whether greedy decoding would say this token.
        assert logprob in likeliest.values()
        assert (max(likeliest.values()) == logprob) == (wanted[at].argmax().item() == ids[at + 1])
    assert found.text_offset is not None
    assert found.text_offset[:2] == [0, len(tokenizer.decode(ids[:1]))]


@pytest.mark.parametrize("max_tokens", [0, 4])
@pytest.mark.parametrize("length", [1, 7, 300])
def test_each_choice_has_the_prompts_scores(client: openai.OpenAI, max_tokens: int, length: int) -> None:
    ids = [5 + number for number in range(length)]
    asked: Any = {
        "model": "dummy:tiny", "prompt": [ids, ids[::-1]], "n": 2, "max_tokens": max_tokens, "echo": True, "logprobs": 2,
        "seed": 1, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    streamed: dict[int, list[float | None]] = {index: [] for index in range(4)}
    for chunk in client.completions.create(**asked, stream=True):
        for part in chunk.model_dump()["choices"]:
            streamed[part["index"]] += part["logprobs"]["token_logprobs"]
    choices = client.completions.create(**asked).model_dump()["choices"]
    for choice in choices:
        found, first = choice["logprobs"], choices[choice["index"] // 2 * 2]["logprobs"]
        assert len(found["tokens"]) == len(found["token_logprobs"]) == length + max_tokens
        assert found["tokens"][:length] == first["tokens"][:length]
        assert found["token_logprobs"][:length] == first["token_logprobs"][:length]
        assert None not in found["token_logprobs"][1:]
        assert streamed[choice["index"]][1:] == pytest.approx(found["token_logprobs"][1:], abs=1e-3)


@pytest.mark.parametrize("way", [{}, {"stream": True}, {"n": 2}, {"logprobs": None}], ids=str)
async def test_a_prompt_as_long_as_the_model_is_scored_whole(
    start_gateway: StartGateway, host: Host, way: dict[str, Any]
) -> None:
    """Nothing is generated, so nothing needs room behind it."""
    gateway_service = start_gateway(host.trio(SHORT, SHORT))
    ids = [5 + 3 * number for number in range(MODEL_LEN)]
    with Client(gateway_service.trio.address) as grpc:
        # The likeliest token, so that a whole prompt ends with a token whose score is known.
        last = grpc.complete(ids[:-1], SamplingParams(max_tokens=1, logprobs=0, ignore_eos=True), PLAIN, raw=True)
    ids[-1] = last.token_ids[0]
    asked = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1, **way}
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        response = await http.post("/v1/completions", json=asked)
        assert response.status_code == 200, response.text
        too_long = [
            await http.post("/v1/completions", json={**asked, **change})
            for change in ({"max_tokens": 1}, {"prompt": [*ids, 5]}, {"prompt": [*ids, 5], "max_tokens": 1})
        ]
    for refusal in too_long:
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "context_length_exceeded")
    bodies = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith(("data: {", "{"))]
    for choice in [choice for body in bodies for choice in json.loads(body)["choices"]]:
        assert (choice["text"].split(), choice["finish_reason"]) == ([f"t{token}" for token in ids], "length")
        if "logprobs" not in way:
            scores = choice["logprobs"]["token_logprobs"]
            assert len(scores) == MODEL_LEN
            assert scores[-1] == pytest.approx(last.logprobs[0].logprob, abs=1e-3)


def test_tokens_of_half_a_character_do_not_overwrite_one_another(real_client: openai.OpenAI) -> None:
    done = real_client.completions.create(
        model="smollm2-135m", prompt="日本語", max_tokens=1, temperature=0, logprobs=5, echo=True
    )
    found = done.choices[0].logprobs
    assert found is not None
    assert any(text.startswith("bytes:\\x") for text in found.tokens or [])
    assert all(len(each) >= 5 for each in (found.top_logprobs or [])[1:])


async def test_tokens_that_could_not_come_have_the_lowest_log_probability(http: httpx2.AsyncClient) -> None:
    asked = {"max_tokens": 2, "allowed_token_ids": [5, 6]}
    response = await http.post("/v1/completions", json={"prompt": "t1", "logprobs": 4, **asked})
    of_text = response.json()["choices"][0]["logprobs"]
    messages = [{"role": "user", "content": "x"}]
    response = await http.post(
        "/v1/chat/completions", json={"messages": messages, "logprobs": True, "top_logprobs": 4, **asked}
    )
    of_chat = response.json()["choices"][0]["logprobs"]["content"]
    likeliest = [list(each.values()) for each in of_text["top_logprobs"]]
    likeliest += [[other["logprob"] for other in each["top_logprobs"]] for each in of_chat]
    assert [logprobs[2:] for logprobs in likeliest] == [[-9999.0] * 2] * 4
