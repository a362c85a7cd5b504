"""Text to tokens and back through the coordinator, against transformers' own tokenizer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer

from coordinator.tokenizer import TokenBytes
from paceline.client import AsyncClient, Client, TokenizerInfo
from paceline.errors import InvalidArgument
from paceline.rpc.channel import open_channel
from paceline.rpc.generation_messages import make_request
from paceline.sampling_params import SamplingParams
from paceline.v1 import generation_pb2_grpc
from tests.byte_level import TEMPLATE, TEXT, write_byte_level_model
from tests.conftest import SMALL_FLAGS
from tests.hosted import Host
from tests.services import Trio

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
ONE_TOKEN = SamplingParams(max_tokens=1)
VOCAB_SIZE = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte_level")
    write_byte_level_model(folder)
    return folder


@pytest.fixture(scope="module")
def trio(host: Host, folder: Path) -> Trio:
    flags = ("--model", str(folder), *SMALL_FLAGS)
    return host.trio(flags, flags)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
async def client(trio: Trio) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(trio.address) as client:
        yield client


async def test_raw_text_is_tokenized_as_the_model_has_it(client: AsyncClient, oracle: Any) -> None:
    assert await client.tokenize(TEXT, raw=True) == oracle.encode(TEXT)
    without = await client.tokenize(TEXT, raw=True, add_special_tokens=False)
    assert without == oracle.encode(TEXT, add_special_tokens=False)
    assert [oracle.bos_token_id, *without] == oracle.encode(TEXT)


async def test_chat_is_tokenized_through_the_template_with_and_without_the_answers_beginning(
    client: AsyncClient, oracle: Any
) -> None:
    for begins in (True, False):
        expected = oracle.apply_chat_template(CHAT, add_generation_prompt=begins, tokenize=True, return_dict=False)
        assert await client.tokenize(CHAT, add_generation_prompt=begins) == expected
    assert await client.tokenize("Why?") == await client.tokenize(CHAT[1:])


async def test_generation_counts_the_prompt_tokens_that_tokenize_gives(client: AsyncClient) -> None:
    for prompt, raw in ((TEXT, True), (TEXT, False), (CHAT, False), ([5, 6, 7], False)):
        done = await client.complete(prompt, ONE_TOKEN, raw=raw)
        assert done.finish is not None
        assert done.finish.prompt_tokens == len(await client.tokenize(prompt, raw=raw))


async def test_pieces_are_the_real_bytes_of_each_token_half_characters_among_them(client: AsyncClient) -> None:
    # The vocabulary was not trained on the snowman: its bytes are tokens of their own.
    text = TEXT + "☃"
    found = await client.detokenize(await client.tokenize(text, raw=True))
    assert found.text == text
    assert found.pieces[0] == b"<bos>"
    assert b"".join(found.pieces[1:]) == text.encode()
    assert found.pieces[-3:] == [b"\xe2", b"\x98", b"\x83"]


async def test_every_byte_comes_back(client: AsyncClient, oracle: Any) -> None:
    """Each of the 256 bytes is a token of a byte-level vocabulary."""
    found = await client.detokenize(list(range(VOCAB_SIZE)))
    assert {bytes([byte]) for byte in range(256)} <= set(found.pieces)
    assert found.pieces[len(oracle) :] == [b""] * (VOCAB_SIZE - len(oracle)), "ids that only fill up the vocabulary"


async def test_special_tokens_stand_in_the_text_where_asked_for(client: AsyncClient) -> None:
    ids = [1, *await client.tokenize("twice", raw=True, add_special_tokens=False), 0]
    assert (await client.detokenize(ids)).text == "twice"
    assert (await client.detokenize(ids, skip_special_tokens=False)).text == "<bos>twice<eos>"


async def test_nothing_is_nothing(client: AsyncClient) -> None:
    assert await client.tokenize("", raw=True) == []
    found = await client.detokenize([])
    assert (found.text, found.pieces) == ("", [])


@pytest.mark.parametrize(
    ("ids", "words"),
    [([5, VOCAB_SIZE], "token_ids is 512; it must be in [0, 512)"), ([1] * 513, "'513 ids'; it must be at most 512"),
     ([-1], "token_ids is -1"), (["t"], "token_ids is 't'")],
    ids=["outside", "too many", "negative", "text"],
)  # fmt: skip
async def test_bad_ids_are_refused_by_name(client: AsyncClient, ids: list[Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.detokenize(ids)
    assert words in str(caught.value)


async def test_endless_text_is_refused_and_a_text_longer_than_the_model_is_tokenized(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgument, match="text is '16385 characters'; it must be at most 16384"):
        await client.tokenize("x" * 16385, raw=True)
    assert len(await client.tokenize("xyzw" * 1000, raw=True)) > VOCAB_SIZE


async def test_description_tells_special_tokens_and_template(client: AsyncClient, tiny_trio: Trio) -> None:
    described = (await client.describe()).tokenizer
    assert described == TokenizerInfo("<bos>", "<eos>", "<pad>", None, TEMPLATE)
    async with AsyncClient(tiny_trio.address) as other:
        assert (await other.describe()).tokenizer.bos_token is None


def test_the_client_for_threads_says_the_same(trio: Trio) -> None:
    with Client(trio.address) as client:
        ids = client.tokenize(TEXT, raw=True, add_special_tokens=False)
        assert client.detokenize(ids).text == TEXT


async def prompt_of(client: AsyncClient, prompt: Any, **options: Any) -> int:
    done = await client.complete(prompt, ONE_TOKEN, **options)
    assert done.finish is not None
    return done.finish.prompt_tokens


async def test_template_options_reach_the_template(client: AsyncClient, oracle: Any) -> None:
    for options in ({}, {"mood": "quite unlike any other"}, {"mood": ["☃", 1, None]}):
        text = oracle.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False, **options)
        expected = len(oracle.encode(text, add_special_tokens=False))
        assert await prompt_of(client, CHAT, template_options=options) == expected


@pytest.mark.parametrize("spelled", ["a message", "an option"])
async def test_special_tokens_that_a_request_spells_are_text_unless_it_says_otherwise(
    client: AsyncClient, oracle: Any, spelled: str
) -> None:
    text = "Why?<eos><pad>"
    chat = [{"role": "user", "content": text}] if spelled == "a message" else CHAT
    options = {"mood": text} if spelled == "an option" else {}
    whole = oracle.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **options)
    parsed = oracle.encode(whole, add_special_tokens=False)
    plain = oracle.encode(whole, add_special_tokens=False, split_special_tokens=True)
    assert len(plain) > len(parsed)
    for parse_special_tokens, expected in ((False, plain), (True, parsed)):
        asked = {"template_options": options, "parse_special_tokens": parse_special_tokens}
        assert await prompt_of(client, chat, **asked) == len(expected)
        if not options:
            assert await client.tokenize(chat, parse_special_tokens=parse_special_tokens) == expected
    assert (await client.tokenize(text, raw=True))[-2:] == [0, 2]


async def test_template_options_without_a_template_or_not_for_json_are_refused(client: AsyncClient) -> None:
    for prompt, options, words in (
        ([5, 6], {"mood": 1}, "None for a prompt without a chat template"),
        ("hi", {"mood": {1}}, "template_options can't be written as JSON"),
        ("hi", ["mood"], "a dict that JSON can hold"),
        ("hi", {"messages": []}, "chat.template_options is 'messages'"),
        ("hi", {"chat_template": "{{ 1 }}"}, "chat.template_options is 'chat_template'"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await client.complete(prompt, ONE_TOKEN, template_options=options)  # type: ignore[arg-type]
        assert words in str(caught.value)


async def test_a_developer_speaks_as_the_system_and_a_tool_as_itself(client: AsyncClient) -> None:
    def said_by(role: str) -> list[dict[str, str]]:
        return [{"role": role, "content": "x"}]

    assert await client.tokenize(said_by("developer")) == await client.tokenize(said_by("system"))
    text = (await client.detokenize(await client.tokenize(said_by("tool")))).text
    assert text == "[tool]x[assistant]"


async def test_request_id_is_given_back(trio: Trio) -> None:
    """The client's pieces do not hold it, so it is read from the message."""
    async with open_channel(trio.address) as channel:
        call = generation_pb2_grpc.GenerationStub(channel).Generate(
            make_request([5], ONE_TOKEN, None, False, request_id="mine")
        )
        assert [response.request_id async for response in call] == ["mine"]


def test_tokens_of_a_vocabulary_with_named_bytes_are_their_bytes() -> None:
    """As Llama 2 and Gemma have it."""
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "▁the": 1, "<0xE6>": 2, "夜": 3}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    token_bytes = TokenBytes(tokenizer)
    assert [token_bytes.of(token) for token in (1, 2, 3, 9)] == [b" the", b"\xe6", "夜".encode(), b""]
