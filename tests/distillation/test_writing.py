"""The target writing with itself: whole conversations with its own distribution."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.distillation.conversations import ChatFrame, Corpus, Question, Record, Style, read_shard, read_tokenizer
from paceline.distillation.questions import MAX_TEXT_TOKENS, OWN, Opening, Questions, read_openings
from paceline.distillation.writer import Writer
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.models.weights import TOKENIZER_FILES, find_folder, load_model
from paceline.errors import ConfigError
from tests.engine.feeding import Feeder

TOP = 8
OPENING = [504, 314]
SHORT = (Style(0.0, 1.0, 12), Style(0.8, 1.0, 12))
EOS = 2
FRAME = ChatFrame([11, 12, 13], [14, 15])
# Many, so that users' messages and answers end by them too, not by their length alone.
ENDS = tuple(range(0, 512, 8))
MESSAGE = "Why is the sky blue?"


@pytest.fixture(scope="module")
def model() -> CpuLlama:
    loaded = load_model("dummy:tiny", torch.float32)
    return CpuLlama(replace(loaded.config, eos_token_ids=ENDS), dict(loaded.tensors), "none", 512)


@pytest.fixture(scope="module")
def tokenizer_files() -> dict[str, bytes]:
    folder = find_folder("smollm2-135m", torch.float32, print)
    return {file: (folder / file).read_bytes() for file in TOKENIZER_FILES if (folder / file).exists()}


def test_the_frame_is_what_the_chat_template_puts_around_a_message(tokenizer_files: dict[str, bytes]) -> None:
    tokenizer = read_tokenizer(tokenizer_files)
    frame = ChatFrame.of(tokenizer)
    templated = tokenizer.apply_chat_template(
        [{"role": "user", "content": MESSAGE}], add_generation_prompt=True, tokenize=False
    )
    message, whole = (tokenizer.encode(text, add_special_tokens=False) for text in (MESSAGE, templated))
    assert [*frame.before, *message, *frame.after] == whole
    assert len(whole) > len(message) > 3


def test_a_model_without_a_chat_template_is_refused(tokenizer_files: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        ChatFrame.of(read_tokenizer({"tokenizer.json": tokenizer_files["tokenizer.json"]}))


def test_a_conversation_is_a_framed_question_and_its_answer(model: CpuLlama) -> None:
    questions = [[178, 314, 260, 357, 282, 464, 47], [504, 62, 359]]
    writer = Writer(model, FRAME, 1, TOP, 0, [Question(each, is_whole=True) for each in questions], answers=SHORT)
    found = dict(writer.records())
    assert sorted(found) == [0, 1]
    for number, question in enumerate(questions):
        prompt = [*FRAME.before, *question, *FRAME.after]
        record = found[number]
        assert record.tokens[: record.num_prompt_tokens].tolist() == prompt
        assert record.written.tolist() == list(range(len(prompt), len(record.tokens)))
        assert 1 <= record.num_written <= 12
        assert record.num_written == 12 or record.tokens[-1] in ENDS


def test_what_is_kept_is_the_targets_own_distribution(model: CpuLlama) -> None:
    """Both sides write concurrent conversations, which begin and end at different times."""
    questions = Questions([], [Opening(OPENING, [], is_about_text=False, is_whole=False)], ENDS, 0)
    records = Writer(model, FRAME, 3, TOP, 1, questions, 2, answers=SHORT).records()
    for record in [next(records)[1] for _ in range(12)]:
        tokens = record.tokens.tolist()
        assert tokens[: len(FRAME.before)] == FRAME.before
        end = record.num_prompt_tokens - len(FRAME.after)
        assert tokens[end : record.num_prompt_tokens] == FRAME.after
        # What it was given of the user's turn is not its own.
        begun = len(FRAME.before) + (len(OPENING) if tokens[len(FRAME.before) :][: len(OPENING)] == OPENING else 0)
        own = [*range(begun, end), *range(record.num_prompt_tokens, len(tokens))]
        assert record.written.tolist() == own
        # The template ends the user's turn, not an EOS token.
        assert not set(tokens[begun:end]) & set(ENDS)
        assert record.answer.written.tolist() == own[end - begun :]
        assert len(record.answer.top_ids) == len(tokens) - record.num_prompt_tokens
        logits = Feeder(model).feed_split(tokens[:-1], [len(tokens) - 1])[record.written - 1]
        expected = torch.log_softmax(logits, dim=-1)
        at = expected.gather(1, torch.from_numpy(record.top_ids.astype(np.int64)))
        np.testing.assert_allclose(record.top_logprobs.astype(np.float32), at.numpy(), atol=0.02, rtol=2e-3)
        assert (np.diff(record.top_logprobs.astype(np.float32), axis=1) <= 0).all()


def test_at_temperature_0_the_answer_is_the_likeliest(model: CpuLlama) -> None:
    writer = Writer(model, FRAME, 2, TOP, 2, [Question([504], is_whole=True)] * 2, answers=(SHORT[0],))
    for _, record in writer.records():
        assert record.tokens[record.num_prompt_tokens :].tolist() == record.top_ids[:, 0].tolist()


def test_a_corpus_gives_back_what_was_added(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def make(num_tokens: int, num_prompt_tokens: int) -> Record:
        written = np.arange(1, num_tokens, dtype=np.int32)
        return Record(
            random.integers(0, 100, num_tokens).astype(np.int32), num_prompt_tokens, written,
            random.integers(0, 100, (len(written), TOP)).astype(np.int32),
            random.standard_normal((len(written), TOP)).astype(np.float16),
        )  # fmt: skip

    corpus, records = Corpus(tmp_path / "corpus"), [make(9, 4), make(30, 1), make(5, 4)]
    corpus.add(records[:2], 1.5)
    corpus.add(records[2:], 0.25)
    assert corpus.seconds == 1.75
    assert Corpus(tmp_path / "corpus").num_written == 8 + 29 + 4
    found = [record for shard in corpus.shards for record in read_shard(shard)]
    for one, other in zip(records, found, strict=True):
        assert one.num_prompt_tokens == other.num_prompt_tokens
        for name in ("tokens", "written", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def plain(*tokens: int) -> Opening:
    return Opening(list(tokens), [], is_about_text=False, is_whole=False)


def test_users_turns_are_prompts_openings_and_the_targets_own() -> None:
    prompts, openings = [[1, 2], [3], [4, 5, 6]], [plain(7), plain(8, 9)]
    samples = list(itertools.islice(Questions(prompts, openings, [EOS], 0), 200))
    assert all(each.is_whole and each.tokens in prompts for each in samples[0::2])
    assert all(not each.is_whole and each.tokens in [[], [7], [8, 9]] for each in samples[1::2])
    counts = Counter(map(repr, samples))
    assert min(counts.values()) >= 10
    assert len(counts) == 6
    assert set(map(repr, itertools.islice(Questions([], [], [EOS], 0), 3))) == {repr(OWN)}


def answered(answer: list[int]) -> Record:
    nothing = np.zeros(0, np.int32)
    return Record(np.array([5, 5, *answer], np.int32), 2, nothing, nothing, nothing.astype(np.float16))


def test_an_answer_becomes_a_text_to_ask_about() -> None:
    about = Opening([1], [3], is_about_text=True, is_whole=True)
    questions = Questions([], [about], [EOS], 0)
    turns = iter(questions)
    assert all(next(turns) == OWN for _ in range(20))
    questions.keep(answered([7] * 8 + [EOS]))
    assert all(next(turns) == OWN for _ in range(20)), "too short for a text"
    questions.keep(answered([7] * 300 + [EOS]))
    asked = [each for each in itertools.islice(turns, 100) if each != OWN]
    assert len(asked) > 10
    for each in asked:
        text = each.tokens[1:-1]
        assert each == about.about(text)
        assert set(text) == {7}
        assert len(text) in (300, MAX_TEXT_TOKENS)
        assert len(each.tokens) <= questions.longest
    assert len({len(each.tokens) for each in asked}) == 2


def test_openings_say_where_a_text_stands_and_whether_the_target_writes_on() -> None:
    def encode(text: str) -> list[int]:
        return [ord(each) for each in text]

    assert Opening.of("Who", encode) == plain(*encode("Who"))
    summary = Opening.of("Sum:\\n{text}", encode)
    assert summary == Opening(encode("Sum:\n"), [], is_about_text=True, is_whole=True)
    assert Opening.of("{text} So...", encode).about([1]) == Question([1, *encode(" So")], is_whole=False)
    openings = read_openings(encode)
    distinct = {(*each.before, 0, *each.after) for each in openings}
    assert len(openings) == len(distinct) > 200
    assert not any(each.before[:1] == encode("#") for each in openings)
    assert {each.is_whole for each in openings if each.is_about_text} == {False, True}
