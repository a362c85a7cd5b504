"""Under a grammar a draft head drafts what may follow behind each round, and nothing behind the text's end."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coordinator.format_grammars import make_grammar
from paceline.errors import InvalidArgument
from paceline.output_format import OutputFormat
from paceline.rpc.model_messages import floats_from_bytes
from target_server.draft_masks import DraftMasks
from tests.draft_heads import WRITERS
from tests.hosted import Host
from tests.serving.raw_session import RawSession, opening, release, truncate, verify
from tests.thinking import EOS_ID, make_backend, write_thinking_model

MATCH, NUM_NEXT = 1, 5
# A token is a byte: digits and letters take turns, in the order of the alphabet, so that no place looks like another.
TOKENIZER = make_backend(has_special_marks=False)
TURNS = "[0-4][ab][5-9][cd][0-4][ef][5-9][gh][0-4][ij][5-9][kl]"
PLACES = re.findall(r"\[.*?\]", TURNS)
# After each first letter the rest of its word is forced.
WORDS = "(one|two|six) (red|tan|big|old|wet) (apple|berry)"
PROMPT = TOKENIZER.encode("Say it.").ids


@pytest.fixture(scope="module", params=WRITERS)
def service(request: pytest.FixtureRequest, host: Host, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = Path(tmp_path_factory.mktemp("bytes"))
    write_thinking_model(folder)
    WRITERS[request.param](folder / "head")
    flags = ("--model", str(folder), "--kv-cache-memory", "8MiB", "--draft-head", f"{folder}/head", "--check-integrity")
    return SimpleNamespace(address=host.start("target_server", *flags).address)


@pytest.fixture
def target(service: SimpleNamespace) -> Iterator[RawSession]:
    session = RawSession(service)  # type: ignore[arg-type]
    yield session
    session.close()


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def text_of(tokens: Any) -> str:
    return TOKENIZER.decode(list(tokens))


class Guided:
    """A sequence under a grammar."""

    def __init__(
        self, target: RawSession, regex: str = TURNS, temperature: float = 0.0, banned: str = "", stop: str = "",
        min_tokens: int = 0,
    ) -> None:  # fmt: skip
        self.target, self.id, self.length = target, target.next_sequence_id(), 0

        def fill(command: Any) -> None:
            opening(temperature)(command)
            command.open.num_prompt_tokens = len(PROMPT)
            command.open.uses_draft_head = True
            command.open.eos_token_ids.append(EOS_ID)
            command.open.sampling.banned_token_ids.extend(ids(banned))
            command.open.sampling.stop_token_ids.extend(ids(stop))
            command.open.sampling.min_tokens = min_tokens
            command.open.grammar = make_grammar(OutputFormat(regex=regex))

        assert target.ask(self.id, fill).WhichOneof("answer") == "open_ack"

    def verify(self, tail: list[int], drafts: str = "", num_next: int = NUM_NEXT, least: float = 0.0) -> Any:
        def fill(command: Any) -> None:
            verify(self.length, tail, ids(drafts), rule=MATCH)(command)
            command.verify.num_next_drafts, command.verify.next_min_probability = num_next, least

        answer = self.target.ask(self.id, fill)
        assert answer.WhichOneof("answer") == "verify_result", answer
        self.length += len(tail) + len(drafts)
        return answer.verify_result

    def truncate(self, length: int) -> None:
        self.target.send(self.id, truncate(length))
        self.length = length


def drafts_of(result: Any) -> tuple[int, str]:
    return result.next_drafts.first_position, text_of(result.next_drafts.tokens)


def fresh(target: RawSession, text: str, **options: Any) -> Any:
    """What a new sequence answers that reads all but the last of a text's tokens at once."""
    sequence = Guided(target, **options)
    result = sequence.verify([*PROMPT, *ids(text)])
    target.send(sequence.id, release)
    return result


def text_of_target(target: RawSession, num_tokens: int, **options: Any) -> str:
    text = ""
    while len(text) < num_tokens:
        text += text_of(fresh(target, text, **options).tokens)
    return text


def may_follow(text: str, drafts: str) -> bool:
    places = "".join(PLACES[len(text) : len(text) + len(drafts)])
    return re.fullmatch(places, drafts) is not None


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("num_before", range(len(PLACES)))
def test_each_draft_may_follow_those_before_it_up_to_the_end(
    target: RawSession, num_before: int, temperature: float
) -> None:
    before = text_of_target(target, num_before, temperature=temperature)
    result = fresh(target, before, temperature=temperature)
    text = before + text_of(result.tokens)
    position, drafts = drafts_of(result)
    assert len(drafts) == min(NUM_NEXT, len(PLACES) - len(text))
    assert may_follow(text, drafts)
    assert not drafts or position == len(PROMPT) + len(text)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("num_accepted", range(4))
@pytest.mark.parametrize("wrong", ["forbidden", "allowed"])
def test_drafts_follow_the_accepted_ones_and_the_target_s_token(
    target: RawSession, num_accepted: int, temperature: float, wrong: str
) -> None:
    """So does the grammar: it has not taken what was rejected."""
    whole = text_of_target(target, 8, temperature=temperature)
    right, its_place = whole[1 : 1 + num_accepted], PLACES[1 + num_accepted]
    others = [each for each in "abcdefghijkl0123456789" if re.fullmatch(its_place, each)]
    other = "z" if wrong == "forbidden" else next(each for each in others if each != whole[1 + num_accepted])
    # What follows it fits behind it.
    behind = "".join(each[1] for each in PLACES[2 + num_accepted : 4 + num_accepted])
    sequence = Guided(target, temperature=temperature)
    assert text_of(sequence.verify(PROMPT, num_next=0).tokens) == whole[0]
    result = sequence.verify(ids(whole[0]), right + other + behind)
    assert text_of(result.tokens[: num_accepted + 1]) == whole[1 : num_accepted + 2]
    text = whole[: num_accepted + 2]
    position, drafts = drafts_of(result)
    assert (position, len(drafts)) == (len(PROMPT) + len(text), NUM_NEXT)
    assert may_follow(text, drafts)
    assert (position, drafts) == drafts_of(fresh(target, text[:-1], temperature=temperature))


def test_rounds_of_drafts_of_its_own_give_the_same_text(target: RawSession) -> None:
    expected = text_of_target(target, len(PLACES), temperature=1.5)
    sequence, text, drafts = Guided(target, temperature=1.5), "", ""
    result = sequence.verify(PROMPT)
    while True:
        tokens = text_of(result.tokens)
        num_accepted = next((at for at, each in enumerate(drafts) if each != tokens[at]), len(drafts))
        text += tokens[: num_accepted + 1]
        if len(text) >= len(PLACES):
            break
        position, drafts = drafts_of(result)
        assert (position, may_follow(text, drafts)) == (len(PROMPT) + len(text), True)
        sequence.truncate(len(PROMPT) + len(text) - 1)
        result = sequence.verify(ids(text[-1]), drafts)
    assert text[: len(PLACES)] == expected


def test_forced_tokens_are_drafted_first_and_certain(target: RawSession) -> None:
    result = fresh(target, "", regex=WORDS)
    first = text_of(result.tokens)
    position, drafts = drafts_of(result)
    assert position == len(PROMPT) + 1
    assert re.fullmatch("(one|two|six) (re|ta|bi|ol|we)", first + drafts)
    confidences = floats_from_bytes(result.next_drafts.confidences, "confidences", NUM_NEXT).tolist()
    # The rest of the word, a space, a choice, and what that forces.
    assert [each == 1 for each in confidences] == [True, True, True, False, True]


def test_where_all_is_forced_that_was_asked_for_nothing_is_drafted(target: RawSession) -> None:
    lengths = [len(Guided(target, WORDS).verify(PROMPT, num_next=each).next_drafts.tokens) for each in range(6)]
    assert lengths == [0, 0, 0, 0, 4, 5]


def test_drafting_stops_where_it_is_not_sure(target: RawSession) -> None:
    """Forced tokens leave it as sure as it was."""
    sequence = Guided(target, WORDS)
    assert len(sequence.verify(PROMPT, least=1.0).next_drafts.tokens) == 4


@pytest.mark.parametrize("text", ["one tan berr", "one tan berry"])
def test_nothing_is_drafted_behind_the_end(target: RawSession, text: str) -> None:
    """The text is over without a token that says so."""
    assert list(fresh(target, text, regex=WORDS).next_drafts.tokens) == []


def test_a_draft_that_ends_the_text_is_the_last(target: RawSession) -> None:
    """Where a text may end and may go on, EOS is a token like others, and leads the grammar nowhere."""
    num_ended = 0
    for length in range(1, 12):
        result = fresh(target, "b" * length, regex="[abde]{1,20}", temperature=1.5)
        drafts = list(result.next_drafts.tokens)
        assert EOS_ID not in drafts[:-1]
        num_ended += drafts[-1:] == [EOS_ID]
    assert num_ended > 0


def test_at_a_dead_end_nothing_is_drafted_and_the_head_goes_on_for_others(target: RawSession) -> None:
    """Behind an "o" the grammar has nothing but an "n", which the request forbids."""
    before = fresh(target, "")
    for text in ("", "o", "on", "x"):
        sequence = Guided(target, "one (red|tan) apple", banned="n")
        drafts = sequence.verify([*PROMPT], text).next_drafts.tokens
        assert list(drafts) == []
    assert drafts_of(fresh(target, "")) == drafts_of(before)


@pytest.mark.parametrize(("min_tokens", "num_drafts"), [(0, 5), (3, 5), (4, 2), (9, 2)])
def test_no_draft_ends_the_text_too_early(target: RawSession, min_tokens: int, num_drafts: int) -> None:
    """The third draft can be nothing but a token that ends the text."""
    result = fresh(target, "", regex="[ab]{3}c[ab]{9}", stop="c", min_tokens=min_tokens)
    assert len(result.next_drafts.tokens) == num_drafts


def test_a_grammar_at_a_limit_ends_the_drafts_alone() -> None:
    """The request may never come there."""

    class Limited:
        def mask(self, completion: list[int]) -> Any:
            if len(completion) > 4:
                raise InvalidArgument("format", "reached a limit")
            return np.full(1, 0b110, np.uint32)

        def is_over(self, completion: list[int]) -> bool:
            return False

        def forced(self, completion: list[int]) -> int | None:
            return None

    options = SimpleNamespace(eos_token_ids=())
    job = SimpleNamespace(
        sequence=SimpleNamespace(options=options),
        mask_after=lambda guide, completion, _: (guide.mask(completion), False),
    )
    masks = DraftMasks(cast(Any, job), cast(Any, Limited()), [1, 1, 1], 9)
    assert masks.has_choice(5)
    assert [masks.may_follow([2] * number) for number in range(4)] == [True, True, False, False]
    assert not DraftMasks(cast(Any, job), cast(Any, Limited()), [1] * 5, 9).has_choice(5)


def test_several_sequences_draft_as_each_alone(target: RawSession) -> None:
    whole = text_of_target(target, 4)
    asked = [(whole[:number], regex) for number in range(3) for regex in (TURNS, "[a-z0-9]{20}")]
    sequences = [Guided(target, regex) for _, regex in asked]

    def asking(text: str) -> Any:
        def fill(command: Any) -> None:
            verify(0, [*PROMPT, *ids(text)], rule=MATCH)(command)
            command.verify.num_next_drafts = NUM_NEXT

        return fill

    commands = [(each.id, asking(text)) for each, (text, _) in zip(sequences, asked, strict=True)]
    answers = [target.answer(each).verify_result for each in target.send_together(commands)]
    for answer, (text, regex) in zip(answers, asked, strict=True):
        assert drafts_of(answer) == drafts_of(fresh(target, text, regex=regex))
