"""Incremental decoding and stop strings, through SmolLM2's own tokenizer (byte-level BPE)."""

import asyncio
import random
import threading

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from coordinator.stop_strings import StopStrings
from coordinator.tokenizer import LONG_CHARACTERS, TextStream, Tokenizer
from coordinator.turns import EarliestDeadlineFirst
from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError, InvalidArgument
from tests.byte_fallback import byte_fallback_tokenizer

BROKEN = "\ufffd"
TEXTS = {
    "accents": "Élodie a réservé à l’hôtel “Cœur d’Été”, naïvement.",
    "combining accents": "e\u0301te\u0301, n\u0303 and a\u030a\u0301",
    "emoji": "Party 🎉🎉 at 7️⃣, says the 👨‍👩‍👧‍👦 from 🇩🇪!",
    "cjk": "東京は夜の七時。漢字とカタカナ、そして한국어。",
    "scripts": "Привет, мир. नमस्ते दुनिया. مرحبا بالعالم.",
    "code": "def f(x):\n\treturn {'a': x ** 2}  # ≤ 9\n",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(load_model("smollm2-135m", torch.bfloat16).tokenizer_files)


def decode(tokenizer: Tokenizer, ids: list[int], *stop: str) -> tuple[list[str], TextStream]:
    """Pushes tokens until a stop string ends the text; returns the pieces, the end's among them."""
    stream = tokenizer.stream(StopStrings(stop))
    pieces = []
    for token in ids:
        pieces.append(stream.push(token))
        if stream.matched_stop:
            break
    return [*pieces, stream.finish()], stream


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` one character at a time: tokens end where characters do."""
    return [token for character in text for token in tokenizer.encode(character)]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_no_piece_holds_half_a_character_and_all_make_the_text(tokenizer: Tokenizer, text: str) -> None:
    pieces, _ = decode(tokenizer, tokenizer.encode(text))
    assert not any(BROKEN in piece for piece in pieces)
    assert "".join(pieces) == text


def test_the_texts_do_split_characters_over_tokens(tokenizer: Tokenizer) -> None:
    split = [
        name for name, text in TEXTS.items() if any(BROKEN in tokenizer.decode([t]) for t in tokenizer.encode(text))
    ]
    assert {"emoji", "cjk", "scripts", "combining accents"} <= set(split)


def test_characters_come_out_with_the_token_that_completes_them(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🐝")
    assert len(ids) > 1
    stream = tokenizer.stream()
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["🐝"]


@pytest.mark.parametrize("share_of_fragments", [0.0, 0.7])
def test_pieces_of_any_tokens_make_the_full_decode(tokenizer: Tokenizer, share_of_fragments: float) -> None:
    size = tokenizer.backend.get_vocab_size()
    fragments = [token for token in range(2000) if BROKEN in tokenizer.decode([token])]
    for seed in range(300):
        rng = random.Random(seed)
        length = rng.randrange(1, 50)
        ids = [
            rng.choice(fragments) if rng.random() < share_of_fragments else rng.randrange(size) for _ in range(length)
        ]
        pieces, _ = decode(tokenizer, ids)
        assert "".join(pieces) == tokenizer.decode(ids), f"seed {seed}"


def test_bytes_that_never_complete_come_out_as_the_replacement_character(tokenizer: Tokenizer) -> None:
    pieces, _ = decode(tokenizer, tokenizer.encode("So 🐝")[:-1])
    assert "".join(pieces[:-1]) == "So"
    assert set(pieces[-1].strip()) == {BROKEN}


@pytest.mark.parametrize(
    "kind", ["a byte inside of a character", "the replacement character", "bytes of two characters"]
)
def test_tokens_that_never_complete_a_character_are_not_held_back(tokenizer: Tokenizer, kind: str) -> None:
    bee = tokenizer.encode("🐝")
    token = {"a byte inside of a character": bee[-1:], "the replacement character": tokenizer.encode(BROKEN)}.get(
        kind, [bee[-1], bee[0]]
    )
    ids = [*tokenizer.encode("So"), *token * 50]
    stream, given = tokenizer.stream(), ""
    for count, each in enumerate(ids, start=1):
        given += stream.push(each)
        # A character of these has at most three tokens.
        assert 3 * len(given) > count - 30
    # What may still become a character does.
    rest = [*bee, *tokenizer.encode(" buzz")]
    given += "".join(map(stream.push, rest)) + stream.finish()
    assert given == tokenizer.decode([*ids, *rest])


def test_a_word_after_many_special_tokens_keeps_its_space(byte_fallback: Tokenizer) -> None:
    known = byte_fallback.backend.token_to_id
    ids = [known("\u2581t1"), *[known("<s>")] * 50, known("\u2581t2")]
    stream = byte_fallback.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == "t1 t2"


def test_special_tokens_and_the_ending_token_add_no_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.encode("<|im_end|>")
    assert len(end) == 1
    pieces, _ = decode(tokenizer, [*tokenizer.encode("one"), *end, *tokenizer.encode(" two")])
    assert "".join(pieces) == "one two"
    stream = tokenizer.stream()
    assert stream.push(tokenizer.encode("two")[0], is_end=True) + stream.finish() == ""


STOPS = {
    # name: (text, stop strings, what is left)
    "across tokens": ("The quick brown fox jumps.", ["wn fox ju"], "The quick bro"),
    "at the start": ("Stop here", ["Stop"], ""),
    "at the end": ("Say amen", ["amen"], "Say "),
    "repeats its own beginning": ("aaaab", ["aab"], "aa"),
    "first of several": ("one two three", ["three", "two", "four"], "one "),
    "overlapping each other": ("abcdef", ["cdef", "bcd"], "a"),
    "one the other's beginning": ("abcdef", ["bcdef", "bcd"], "a"),
    "whole character of many bytes": ("Buzz 🐝 buzz", ["🐝"], "Buzz "),
    "across characters of many bytes": ("漢字とカタカナ、そして", ["カナ、そ"], "漢字とカタ"),
    "combining accent": ("cafe\u0301 noir", ["\u0301 n"], "cafe"),
    "line ends": ("a = 1\n\nb = 2\n\n\nc", ["\n\n\n"], "a = 1\n\nb = 2"),
    "long": ("x" * 30 + "yz", ["x" * 29 + "y"], "x"),
}


@pytest.mark.parametrize("spelled", [False, True], ids=["tokens", "characters"])
@pytest.mark.parametrize(("text", "stop", "left"), STOPS.values(), ids=STOPS.keys())
def test_text_ends_before_the_stop_string(
    tokenizer: Tokenizer, text: str, stop: list[str], left: str, spelled: bool
) -> None:
    pieces, stream = decode(tokenizer, spell(tokenizer, text) if spelled else tokenizer.encode(text), *stop)
    assert "".join(pieces) == left
    # The shortest of those that begin there: it is whole first.
    assert stream.matched_stop == min((each for each in stop if text.startswith(each, len(left))), key=len)


def test_part_of_a_stop_string_is_held_back_and_then_released(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream(StopStrings(("END.",)))
    given = [stream.push(token) for token in spell(tokenizer, "the ENDing END.")]
    assert given == [*"the ", "", "", "", "ENDi", *"ng ", "", "", "", ""]
    assert stream.matched_stop == "END."
    assert stream.finish() == ""


def test_what_is_held_back_becomes_shorter_as_the_match_shrinks(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream(StopStrings(("aab",)))
    assert [stream.push(token) for token in spell(tokenizer, "aaac")] == ["", "", "a", "aac"]


@pytest.mark.parametrize("text", ["and so on, EN", "half a bee: 漢EN"])
def test_finish_gives_what_was_held_back(tokenizer: Tokenizer, text: str) -> None:
    pieces, stream = decode(tokenizer, spell(tokenizer, text), "END")
    assert "".join(pieces) == text
    assert pieces[-1] == "EN"
    assert stream.matched_stop == ""


def test_stop_strings_do_not_stop_before_they_may(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream(StopStrings(("b",)))
    early = "".join(stream.push(token, may_stop=False) for token in spell(tokenizer, "abab"))
    assert early == "abab"
    assert stream.push(tokenizer.encode("b")[0]) == ""
    assert stream.matched_stop == "b"


def test_text_without_stop_string_is_held_back_by_no_more_than_its_length(tokenizer: Tokenizer) -> None:
    stream, given = tokenizer.stream(StopStrings(("zzz", "ab"))), ""
    for count, token in enumerate(spell(tokenizer, "azzbazzcza" * 3), start=1):
        given += stream.push(token)
        assert count - len(given) <= 2


def test_chat_goes_through_the_models_template(tokenizer: Tokenizer) -> None:
    text = tokenizer.backend.decode(
        tokenizer.encode_chat([{"role": "user", "content": "Hi"}]), skip_special_tokens=False
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_model_without_chat_template_refuses_chat() -> None:
    files = dummy_tokenizer_files(32) | {"tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}'}
    with pytest.raises(InvalidArgument, match="no chat template"):
        Tokenizer(files).encode_chat([{"role": "user", "content": "t1"}])


def test_files_that_are_no_tokenizer_are_refused() -> None:
    with pytest.raises(ConfigError, match="tokenizer can't be read"):
        Tokenizer({"tokenizer.json": b"{}", "tokenizer_config.json": b"{}"})


async def test_a_long_text_is_tokenized_while_the_event_loop_goes_on(tokenizer: Tokenizer) -> None:
    loop_went_on = threading.Event()

    def encode() -> list[int]:
        # On the event loop this would wait for itself.
        assert loop_went_on.wait(timeout=20)
        return tokenizer.encode("long")

    encoding = asyncio.create_task(tokenizer.run(encode, LONG_CHARACTERS))
    await asyncio.sleep(0)
    loop_went_on.set()
    assert await encoding == tokenizer.encode("long")


async def test_a_long_text_waits_for_shorter_ones_and_an_abandoned_one_is_not_tokenized(tokenizer: Tokenizer) -> None:
    is_free, done = threading.Event(), list[str]()

    def work(name: str, num_characters: int) -> asyncio.Task[None]:
        return asyncio.create_task(tokenizer.run(lambda: done.append(name), num_characters))

    first = asyncio.create_task(tokenizer.run(lambda: is_free.wait(timeout=20), LONG_CHARACTERS))
    await asyncio.sleep(0)
    longest, abandoned, short = work("longest", 10**8), work("abandoned", LONG_CHARACTERS), work("short", 10**5)
    await asyncio.sleep(0)
    abandoned.cancel()
    is_free.set()
    assert await first
    await asyncio.gather(longest, short)
    assert done == ["short", "longest"]


async def test_a_turn_that_comes_to_who_gives_up_goes_on_to_the_next() -> None:
    turns, taken = EarliestDeadlineFirst(), list[int]()

    async def take(number: int) -> None:
        async with turns.turn(float(number)):
            taken.append(number)
            await asyncio.sleep(0)

    async with turns.turn(0.0):
        waiting = [asyncio.create_task(take(number)) for number in (3, 1, 2)]
        await asyncio.sleep(0)
    # Its turn has just come.
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert taken == [2, 3]
    async with turns.turn(0.0):
        taken.append(0)


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """As Llama 2's: a run of byte tokens is decoded as a whole, so a bad byte changes what is before it."""
    return Tokenizer(
        {
            "tokenizer.json": byte_fallback_tokenizer().to_str().encode(),
            "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
        }
    )


@given(ids=st.lists(st.integers(0, 511) | st.integers(3, 258), max_size=30))
def test_no_tokens_break_a_stream_or_lose_a_word(byte_fallback: Tokenizer, ids: list[int]) -> None:
    stream = byte_fallback.stream()
    text = "".join([*(stream.push(token) for token in ids), stream.finish()])
    whole = byte_fallback.decode(ids)
    words = [byte_fallback.bytes_of(token).decode().strip() for token in ids if token > 300]
    at = 0
    for word in words:
        at = text.index(word, at) + len(word)
    # Nothing was amiss.
    assert text == whole or BROKEN in whole


@given(prompt=st.lists(st.integers(1, 511), max_size=12), ids=st.lists(st.integers(3, 511), max_size=12))
def test_a_text_goes_on_with_the_prompts(byte_fallback: Tokenizer, prompt: list[int], ids: list[int]) -> None:
    """Llama 2's tokenizer takes the space from a text's first word, and from no other."""
    before, whole = byte_fallback.decode(prompt), byte_fallback.decode([*prompt, *ids])
    assume(BROKEN not in before + whole)
    stream = byte_fallback.stream(before=prompt)
    text = "".join([*(stream.push(token) for token in ids), stream.finish()])
    assert before + text == whole


def test_a_word_behind_a_broken_character_keeps_its_space(byte_fallback: Tokenizer) -> None:
    known = byte_fallback.backend.token_to_id
    ids = [known(piece) for piece in ("\u2581t1", "<0x0A>", "<0xF0>", "\u2581t2")]
    stream = byte_fallback.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == f"t1\n{BROKEN} t2"
