"""Bad input gets a clear error that names the field and the range, and nobody else is disturbed."""

import asyncio
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import save_file

from coordinator.config import CoordinatorSettings
from draft_server.config import DraftSettings
from paceline.engine.engine import build_engine
from paceline.engine.engine_config import DRAFT_ROLE, TARGET_ROLE, EngineConfig, ModelRole
from paceline.engine.models.dummy import make_dummy
from paceline.errors import ConfigError
from paceline.rpc.channel import open_channel
from paceline.rpc.generation_messages import make_request
from paceline.sampling_params import SamplingParams
from paceline.settings import parse_settings
from paceline.v1 import generation_pb2, generation_pb2_grpc
from target_server.config import TargetSettings
from tests.bystander import undisturbed_bystander
from tests.hosted import Host, RefusedStart
from tests.model_folder import change_config, write_model
from tests.services import Trio, split_variables

pytestmark = pytest.mark.slow

PROMPT = [3, 14, 15]
BYSTANDER = SamplingParams(max_tokens=100, ignore_eos=True)


def request(**sampling: object) -> generation_pb2.GenerateRequest:
    """A good request but for `sampling`, written past the client's own checks."""
    return generation_pb2.GenerateRequest(token_ids={"ids": PROMPT}, sampling=sampling)


def speculating(**speculation: object) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(token_ids={"ids": PROMPT}, speculation=speculation)


def prompt_of(ids: list[int]) -> generation_pb2.GenerateRequest:
    return make_request(ids, None, None, raw=False)


def chat_of(options: str) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        chat={"messages": [{"role": "user", "content": "hi"}], "template_options": options}
    )


TOMORROW = make_request("hi", None, None, raw=False, template_time="tomorrow")


def predicting(**prediction: object) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(token_ids={"ids": PROMPT}, **prediction)


BAD_REQUESTS = {
    "max_tokens 0 with min_tokens": (request(max_tokens=0, min_tokens=1), "min_tokens is 1", "[0, max_tokens]"),
    "max_tokens 0 with beams": (request(max_tokens=0, beams=2), "max_tokens is 0", "at least 1 with beams"),
    "negative temperature": (request(temperature=-0.5), "temperature is -0.5", ">= 0"),
    "temperature NaN": (request(temperature=math.nan), "temperature is nan", ">= 0"),
    "infinite temperature": (request(temperature=math.inf), "temperature is inf", "finite"),
    "top_p below 0": (request(top_p=-0.5), "top_p is -0.5", "in [0, 1]"),
    "top_p above 1": (request(top_p=1.5), "top_p is 1.5", "in [0, 1]"),
    "top_p NaN": (request(top_p=math.nan), "top_p is nan", "in [0, 1]"),
    "min_p above 1": (request(min_p=2.0), "min_p is 2.0", "in [0, 1]"),
    "min_tokens above max_tokens": (request(max_tokens=3, min_tokens=4), "min_tokens is 4", "[0, max_tokens]"),
    "10,000 stop strings": (request(stop=["x"] * 10_000), "stop is '10000 strings'", "at most 64"),
    "an empty stop string": (request(stop=[""]), "stop is ''", "1 to 1024 characters"),
    "a stop token outside the vocabulary": (request(stop_token_ids=[512]), "stop_token_ids is 512", "in [0, 512)"),
    "a token outside the vocabulary": (prompt_of([5, 512]), "token_ids is 512", "in [0, 512)"),
    "an empty prompt": (prompt_of([]), "prompt is '0 tokens'", "at least one token"),
    "no prompt": (generation_pb2.GenerateRequest(), "prompt is None", "text, chat, token_ids or infill"),
    "empty text": (make_request("", None, None, raw=True), "prompt is '0 tokens'", "at least one token"),
    "a prompt longer than the model": (prompt_of([1] * 512), "prompt is '512 tokens'", "at most 511 tokens"),
    "an unknown role": (make_request([{"role": "robot", "content": "hi"}], None, None, raw=False), "chat.messages.role", "user"),
    "repetition_penalty 0": (request(repetition_penalty=0.0), "repetition_penalty is 0.0", "in [0.01, 100]"),
    "next to no repetition_penalty": (request(repetition_penalty=1e-40, temperature=1.0, top_k=5), "repetition_penalty is 9.9", "in [0.01, 100]"),
    "presence_penalty 3": (request(presence_penalty=3.0), "presence_penalty is 3.0", "in [-2, 2]"),
    "frequency_penalty NaN": (request(frequency_penalty=math.nan), "frequency_penalty is nan", "in [-2, 2]"),
    "a bias of 200": (request(logit_bias={7: 200.0}), "logit_bias[7] is 200.0", "in [-100, 100]"),
    "a bias outside the vocabulary": (request(logit_bias={512: 1.0}), "logit_bias is 512", "in [0, 512)"),
    "an allowed token outside": (request(allowed_token_ids=[512]), "allowed_token_ids is 512", "in [0, 512)"),
    "nothing left to draw": (request(allowed_token_ids=[5], banned_token_ids=[5]), "banned_token_ids", "left to draw"),
    "only the end before min_tokens": (request(allowed_token_ids=[5], stop_token_ids=[5], min_tokens=2), "banned_token_ids", "left to draw"),
    "0 samples": (request(n=0), "n is 0", "in [1, 64]"),
    "21 log-probabilities": (request(logprobs=21), "logprobs is 21", "in [0, 20]"),
    "21 of the prompt": (request(prompt_logprobs=21), "prompt_logprobs is 21", "in [0, 20]"),
    "lenience 0": (speculating(lenience=0.0), "lenience is 0.0", "in (0, 1]"),
    "a custom drafter that is not there": (speculating(drafter="custom"), "drafter is 'custom'", "model, hierarchical, ngram, suffix or hybrid"),
    "a drafter that nobody has": (speculating(drafter="oracle"), "drafter is 'oracle'", "one of model, hierarchical, ngram, suffix, hybrid, head, custom"),
    "bounds upside down": (speculating(adaptive={"min": 5, "max": 3}), "length.min is 5", "[0, length.max], which is 3"),
    "an entropy memory of 1": (speculating(entropy={"bounds": {"max": 4}, "ema_beta": 1.0}), "ema_beta is 1.0", "in [0, 1)"),
    "17 draft tokens": (speculating(num_speculative_tokens=17), "num_speculative_tokens is 17", "in [0, 16]"),
    "template options that are no JSON": (chat_of("{no"), "chat.template_options is '{no'", "a JSON object"),
    "half of a character in template options": (chat_of(r'{"a": ["\ud800"]}'), "chat.template_options is", "a JSON object"),
    "template options in a list": (chat_of("[1]"), "chat.template_options is '[1]'", "a JSON object"),
    "template options too deep": (chat_of("[" * 9_000), "chat.template_options", "a JSON object"),
    "an option that is not the template's": (chat_of('{"tokenize": true}'), "chat.template_options is 'tokenize'", "reads"),
    "a time that is none": (TOMORROW, "chat.template_time is 'tomorrow'", "a time in ISO 8601"),
    "endless template options": (chat_of(" " * 20_000), "chat.messages is", "at most 16384 characters"),
    "a prediction longer than the model": (predicting(prediction_token_ids={"ids": [1] * 512}), "prediction is '512 tokens'", "at most 511 tokens"),
    "an endless prediction": (predicting(prediction_text="t1 " * 9_000), "prediction is '27000 characters'", "at most 16384 characters"),
    "a prediction outside the vocabulary": (predicting(prediction_token_ids={"ids": [5, 512]}), "prediction is 512", "in [0, 512)"),
    "calls without end": (
        generation_pb2.GenerateRequest(chat={"messages": [{"role": "assistant", "tool_calls": [{}] * 16385}]}),
        "chat.messages.tool_calls is '16385 calls'", "at most 16384 calls",
    ),
    "an unknown rule": (speculating(rule=9), "rule is 9", "match, rejection"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_bad_request_is_refused_by_name_and_a_bystander_goes_on(name: str, tiny_trio: Trio) -> None:
    message, field, allowed = BAD_REQUESTS[name]
    beside = undisturbed_bystander(tiny_trio.address, PROMPT, BYSTANDER)
    async with beside, open_channel(tiny_trio.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generation_pb2_grpc.GenerationStub(channel).Generate(message).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in caught.value.details()
        assert allowed in caught.value.details()


async def test_bytes_that_are_no_message_are_invalid_argument(tiny_trio: Trio) -> None:
    async with open_channel(tiny_trio.address) as channel:
        call = channel.unary_stream("/paceline.v1.Generation/Generate")(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def change_tensors(folder: Path, **changes: torch.Tensor) -> None:
    save_file(make_dummy("tiny", torch.float32)[1] | changes, folder / "model.safetensors")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


# What spoils a model, and what the error must say.
SPOILS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a tensor of another shape": (
        lambda f: change_tensors(f, **{"model.norm.weight": torch.ones(63)}),
        ["model.norm.weight has shape (63,), the config says (64,)"],
    ),
    "fewer layers than the config says": (
        lambda f: change_config(f, num_hidden_layers=3), ["model.layers.2.", "is missing"],
    ),
    "more layers than the config says": (
        lambda f: change_config(f, num_hidden_layers=1), ["model.layers.1.", "the config says 1 layers"],
    ),
    "another vocabulary": (lambda f: change_config(f, vocab_size=500), ["(512, 64)", "(500, 64)"]),
    "weights cut short": (lambda f: cut_short(f / "model.safetensors"), ["model.safetensors", "can't be read"]),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ["no .safetensors files"]),
    "an architecture without the interface": (
        lambda f: change_config(f, model_type="bloom"), ["'bloom'", "does not declare transformers' attention interface"],
    ),
    "an architecture of other tensors": (lambda f: change_config(f, model_type="gpt2"), ["lm_head.weight is missing"]),
    "a config field of the wrong type": (
        lambda f: change_config(f, num_attention_heads="four"), ["config.json", "num_attention_heads"],
    ),
    "a config that is no JSON": (lambda f: (f / "config.json").write_text("{"), ["config.json"]),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ["no tokenizer.json"]),
    "a tokenizer that is none": (lambda f: (f / "tokenizer.json").write_text("{}"), ["tokenizer.json can't be read"]),
}  # fmt: skip


# Changes to a good configuration, and what the error must say.
CONFIGS: dict[str, tuple[dict[str, object], list[str]]] = {
    "an unknown name": ({"model": "no-such-model"}, ["no-such-model", "smollm2-135m"]),
    "a missing folder": ({"model": "./nowhere"}, ["./nowhere", "no such folder"]),
    "a missing file": ({"model": "nowhere.gguf"}, ["nowhere.gguf", "no such file"]),
    "an unknown dummy": ({"model": "dummy:huge"}, ["dummy:huge", "dummy:tiny"]),
    "a cache too small": ({"kv_cache_memory": 1024}, ["two blocks", "budget: weights"]),
    "a GPU's cache in int8": ({"device": "cuda", "kv_cache_dtype": "int8"}, ["kv_cache_dtype is 'int8'", "on a GPU"]),
    "4 bits on a GPU": (
        {"device": "cuda", "quantization": "int4"},
        ["quantization is 'int4'", "on a GPU", "'auto', 'none', 'int8'"],
    ),
    "a length beyond the model's": ({"max_model_len": 9999}, ["max_model_len is 9999", "at most 512"]),
}


async def check_refused(changes: dict[str, object], parts: list[str], role: ModelRole = TARGET_ROLE) -> None:
    config: dict[str, object] = {"model": "dummy:tiny", "dtype": "float32", "kv_cache_memory": 16 << 20}
    # Or the engine would change them for the tests behind this one.
    config["threads"] = torch.get_num_threads()
    loop, made = asyncio.get_running_loop(), EngineConfig(**config | changes)  # type: ignore[arg-type]
    # On a thread of its own: one that gets as far as to be built stays on one core.
    with ThreadPoolExecutor(max_workers=1) as thread, pytest.raises(ConfigError) as caught:
        await loop.run_in_executor(thread, build_engine, made, role, loop)
    text = str(caught.value)
    assert "\n" not in text
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize("name", SPOILS)
async def test_spoilt_model_is_refused_saying_what_is_wrong(name: str, tmp_path: Path) -> None:
    spoil, parts = SPOILS[name]
    write_model(tmp_path)
    spoil(tmp_path)
    await check_refused({"model": str(tmp_path)}, parts)


@pytest.mark.parametrize("name", CONFIGS)
async def test_model_that_cannot_be_had_is_refused_saying_why(name: str) -> None:
    await check_refused(*CONFIGS[name])


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"device": "cuda"}, "on a GPU"), ({"dtype": "float32", "quantization": "none"}, "float32 weights")],
    ids=["GPU", "float32"],
)
async def test_a_draft_head_that_cannot_be_narrowed_is_refused_saying_why(
    changes: dict[str, object], part: str
) -> None:
    await check_refused(changes, ["vocab_size is 64", part], replace(DRAFT_ROLE, vocab_size=64))


# module, flags, parts of the one error line. {port} is taken, nobody listens at {nobody}.
REFUSALS: dict[str, tuple[str, str, list[str]]] = {
    "unknown model": ("draft_server", "--model no-such-model", ["'no-such-model'", "smollm2-135m"]),
    "weights unlike config": ("target_server", "--model {spoilt}", ["model.norm.weight has shape (63,)"]),
    "no memory": (
        "target_server", "--model dummy:tiny --kv-cache-memory 900GiB",
        ["lower --kv-cache-memory", "budget: weights", "KV cache 921,600 MiB", "available"],
    ),
    "port in use": (
        "target_server", "--model dummy:tiny --threads 1 --kv-cache-memory 16MiB --listen 127.0.0.1:{port}",
        ["127.0.0.1:{port}", "in use"],
    ),
    "coordinator's port in use": (
        "coordinator", "--target {target} --draft none --listen 127.0.0.1:{port}", ["127.0.0.1:{port}", "in use"],
    ),
    "no target": (
        "coordinator", "PACELINE_COORDINATOR_CONNECT_TIMEOUT=2 --target unix:{nobody} --draft none",
        ["the target server at unix:{nobody} is not available (away for 2 s)"],
    ),
    "no draft": (
        "coordinator", "PACELINE_COORDINATOR_CONNECT_TIMEOUT=1 --target {target} --draft unix:{nobody}",
        ["the draft server at unix:{nobody} is not available (away for 1 s)", "--draft none"],
    ),
}  # fmt: skip
BAD_FLAGS: dict[str, tuple[str, str, list[str]]] = {
    "unknown flag": ("coordinator", "--speed 11", ["--speed"]),
    "flag without value": ("draft_server", "--model", ["--model"]),
    "value not among the allowed": ("target_server", "--dtype float17", ["--dtype", "float32", "float17"]),
    "a cache's dtype not among the allowed": (
        "target_server",
        "--kv-cache-dtype int4",
        ["--kv-cache-dtype", "int8", "int4"],
    ),
    "value out of range": ("target_server", "--block-size 3", ["--block-size", "8", "'3'"]),
    "no target server": ("coordinator", "--target none", ["--target", "'none'", "HOST:PORT"]),
    "no size": ("target_server", "--kv-cache-memory much", ["--kv-cache-memory", "'much'"]),
}
SETTINGS = {"draft_server": DraftSettings, "target_server": TargetSettings, "coordinator": CoordinatorSettings}


@pytest.fixture(scope="module")
def names(host: Host, tiny_trio: Trio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands for the braces in REFUSALS."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "spoilt").mkdir()
    write_model(folder / "spoilt")
    SPOILS["a tensor of another shape"][0](folder / "spoilt")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield {
            "port": str(taken.getsockname()[1]), "nobody": f"{folder}/nobody.sock", "spoilt": f"{folder}/spoilt",
            "target": tiny_trio.target.address,
        }  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_service_that_cannot_start_says_why(name: str, host: Host, names: dict[str, str]) -> None:
    module, flags, parts = REFUSALS[name]
    with pytest.raises(RefusedStart) as caught:
        host.start(module, *flags.format(**names).split())
    text = str(caught.value)
    # `run` turns this exception, and no other, into one line and exit status 1.
    assert text.startswith("ConfigError: ")
    assert "\n" not in text
    assert [part for part in parts if part.format(**names) not in text] == []


@pytest.mark.parametrize("name", BAD_FLAGS)
def test_bad_flag_is_refused_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, flags, parts = BAD_FLAGS[name]
    monkeypatch.setattr(sys, "argv", [module, *flags.split()])
    with pytest.raises(SystemExit) as ended:
        parse_settings(SETTINGS[module], module)
    assert ended.value.code == 2
    check_one_line(capsys.readouterr().err, parts)


def check_one_line(stderr: str, parts: list[str]) -> None:
    assert "Traceback" not in stderr
    [line] = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert [part for part in parts if part not in line] == []


# One of each service, and of each exit status.
@pytest.mark.parametrize(
    ("name", "status"), [("unknown model", 1), ("no target", 1), ("value not among the allowed", 2)]
)
def test_process_that_cannot_start_says_why_in_one_line(name: str, status: int, names: dict[str, str]) -> None:
    module, flags, parts = (REFUSALS | BAD_FLAGS)[name]
    variables, arguments = split_variables(flags.format(**names).split())
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status
    check_one_line(done.stderr, [part.format(**names) for part in parts])
