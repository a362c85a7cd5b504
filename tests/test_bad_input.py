"""Bad input gets a clear error that names the field and the range, and nobody else is disturbed."""

import asyncio
import math
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import save_file

from paceline.client import AsyncClient, make_request
from paceline.engine.dummy import dummy_config, dummy_tokenizer_files, make_dummy
from paceline.rpc.channel import open_channel
from paceline.sampling import SamplingParams, SpeculationParams
from paceline.v1 import generation_pb2, generation_pb2_grpc
from tests.conftest import TINY
from tests.services import Trio, running, start_service

PROMPT = [3, 14, 15]
BYSTANDER = SamplingParams(max_tokens=200, ignore_eos=True)


def request(**sampling: object) -> generation_pb2.GenerateRequest:
    """A good request but for `sampling`, written past the client's own checks."""
    message = make_request(PROMPT, None, None, raw=False)
    for name, value in sampling.items():
        if isinstance(value, list):
            getattr(message.sampling, name).extend(value)
        else:
            setattr(message.sampling, name, value)
    return message


def prompt_of(ids: list[int]) -> generation_pb2.GenerateRequest:
    return make_request(ids, None, None, raw=False)


BAD_REQUESTS = {
    "max_tokens 0": (request(max_tokens=0), "max_tokens is 0", "in [1,"),
    "negative temperature": (request(temperature=-0.5), "temperature is -0.5", ">= 0"),
    "temperature NaN": (request(temperature=math.nan), "temperature is nan", ">= 0"),
    "infinite temperature": (request(temperature=math.inf), "temperature is inf", "finite"),
    "top_p 0": (request(top_p=0.0), "top_p is 0.0", "in (0, 1]"),
    "top_p above 1": (request(top_p=1.5), "top_p is 1.5", "in (0, 1]"),
    "top_p NaN": (request(top_p=math.nan), "top_p is nan", "in (0, 1]"),
    "min_p above 1": (request(min_p=2.0), "min_p is 2.0", "in [0, 1]"),
    "min_tokens above max_tokens": (request(max_tokens=3, min_tokens=4), "min_tokens is 4", "[0, max_tokens]"),
    "10,000 stop strings": (request(stop=["x"] * 10_000), "stop is '10000 strings'", "at most 64"),
    "an empty stop string": (request(stop=[""]), "stop is ''", "1 to 1024 characters"),
    "a stop token outside the vocabulary": (request(stop_token_ids=[512]), "stop_token_ids is 512", "in [0, 512)"),
    "a token outside the vocabulary": (prompt_of([5, 512]), "token_ids is 512", "in [0, 512)"),
    "an empty prompt": (prompt_of([]), "prompt is '0 tokens'", "at least one token"),
    "no prompt": (generation_pb2.GenerateRequest(), "prompt is None", "text, chat or token_ids"),
    "empty text": (make_request("", None, None, raw=True), "prompt is '0 tokens'", "at least one token"),
    "a prompt longer than the model": (prompt_of([1] * 512), "prompt is '512 tokens'", "at most 511 tokens"),
    "an unknown role": (make_request([{"role": "robot", "content": "hi"}], None, None, raw=False), "chat.messages.role", "user"),
    "17 draft tokens": (
        generation_pb2.GenerateRequest(token_ids={"ids": PROMPT}, speculation={"num_draft_tokens": 17}),
        "num_draft_tokens is 17", "in [0, 16]",
    ),
    "an unknown rule": (
        generation_pb2.GenerateRequest(token_ids={"ids": PROMPT}, speculation={"rule": 9}),
        "rule is 9", "match, rejection",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REQUESTS)
async def test_bad_request_is_refused_by_name_and_a_bystander_goes_on(name: str, tiny_trio: Trio) -> None:
    message, field, allowed = BAD_REQUESTS[name]
    async with AsyncClient(tiny_trio.address) as client, open_channel(tiny_trio.address) as channel:
        expected = await client.complete(PROMPT, BYSTANDER, SpeculationParams(enabled=False))
        bystander = asyncio.create_task(client.complete(PROMPT, BYSTANDER))
        await asyncio.sleep(0.02)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generation_pb2_grpc.GenerationStub(channel).Generate(message).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in caught.value.details()
        assert allowed in caught.value.details()
        assert (await bystander).token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("sampling", "field"),
    [({"n": 2}, "n"), ({"logprobs": 1}, "logprobs"), ({"presence_penalty": 0.5}, "presence_penalty")],
)
async def test_what_is_not_built_yet_is_unimplemented_by_name(
    sampling: dict[str, object], field: str, tiny_trio: Trio
) -> None:
    async with open_channel(tiny_trio.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generation_pb2_grpc.GenerationStub(channel).Generate(request(**sampling)).read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details().startswith(f"{field} ")


async def test_bytes_that_are_no_message_are_invalid_argument(tiny_trio: Trio) -> None:
    async with open_channel(tiny_trio.address) as channel:
        call = channel.unary_stream("/paceline.v1.Generation/Generate")(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def run_to_its_end(module: str, *flags: str) -> tuple[int, list[str]]:
    """Exit status of a service that can't start, and its error lines."""
    done = subprocess.run(
        [sys.executable, "-m", module, *flags], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("error:")]


def broken_model(folder: Path) -> Path:
    """A model folder whose weights lack what its config promises."""
    config = dummy_config("tiny")
    config.save_pretrained(folder)
    _, tensors = make_dummy("tiny", torch.float32)
    tensors["model.norm.weight"] = torch.ones(63)
    save_file(tensors, folder / "model.safetensors")
    for name, data in dummy_tokenizer_files(config.vocab_size).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("flags", "status", "parts"),
    [
        (["--model", "no-such-model"], 1, ["no-such-model", "smollm2-135m"]),
        (["--model", "./nowhere"], 1, ["./nowhere", "no such folder"]),
        (["--model", "nowhere.gguf"], 1, ["nowhere.gguf", "no such file"]),
        (["--model", "dummy:huge"], 1, ["dummy:huge", "dummy:tiny"]),
        (["--model", "dummy:tiny", "--kv-cache-memory", "900GiB"], 1, ["KV cache 921,600 MiB", "available"]),
        (["--model", "dummy:tiny", "--kv-cache-memory", "1KiB"], 1, ["two blocks", "budget"]),
        (["--model", "dummy:tiny", "--max-model-len", "9999"], 1, ["max_model_len is 9999", "512"]),
        (["--dtype", "float17"], 2, ["--dtype", "float32"]),
        (["--block-size", "3"], 2, ["--block-size", "greater than or equal to 8"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_server_that_cannot_start_says_why_in_one_line(flags: list[str], status: int, parts: list[str]) -> None:
    returned, lines = run_to_its_end("target_server", "--listen", "127.0.0.1:0", *flags)
    assert returned == status
    assert len(lines) == 1
    for part in parts:
        assert part in lines[0]


def test_weights_that_do_not_match_the_config_are_named(tmp_path: Path) -> None:
    status, lines = run_to_its_end("target_server", "--model", str(broken_model(tmp_path)), "--dtype", "float32")
    assert status == 1
    assert "model.norm.weight has shape (63,), the config says (64,)" in lines[0]


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, lines = run_to_its_end("target_server", "--model", "dummy:tiny", "--listen", address)
    assert status == 1
    assert address in lines[0]
    assert "in use" in lines[0]


def test_a_server_that_is_not_there_is_named_with_the_time_waited(tmp_path: Path) -> None:
    missing = f"unix:{tmp_path}/nobody.sock"
    status, lines = run_to_its_end("coordinator", "--target", missing, "--connect-timeout", "2")
    assert status == 1
    assert f"the target server at {missing} is not available (waited 2 s)" in lines[0]


def test_different_tokenizers_are_refused_naming_both_models(tmp_path: Path) -> None:
    other = ("--model", "dummy:tiny-32-a", "--kv-cache-memory", "16MiB")
    draft, target = start_service("draft_server", tmp_path, *other), start_service("target_server", tmp_path, *TINY)
    with running(draft, target):
        addresses = ("--draft", draft.address, "--target", target.address)
        status, lines = run_to_its_end("coordinator", *addresses, "--connect-timeout", "2")
    assert status == 1
    for part in ("'dummy:tiny-32-a'", "'dummy:tiny'", "32 token ids against 512"):
        assert part in lines[0]
