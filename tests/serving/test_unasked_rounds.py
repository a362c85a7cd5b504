"""A target that goes on by itself computes the rounds that it would be asked for, and stops wherever they would."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TINY
from tests.draft_heads import write_head
from tests.hosted import Host
from tests.serving.raw_session import RawSession, opening, release, truncate, verify

MATCH, REJECTION, INVALID_ARGUMENT, CANCELLED = 1, 2, 3, 1
# Of a sequence, and of all: of its blocks a long run uses up the last.
MAX_LEN, NUM_MORE = 128, 7
PROMPT = [number * 37 % 500 for number in range(29)]
Fill = Callable[[Any], None]


@pytest.fixture(scope="module")
def address(host: Host, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("unasked")
    write_head(folder / "head")
    address = f"unix:{folder}/target.sock"
    options = (*TINY, "--block-size", "8", "--max-model-len", str(MAX_LEN), "--draft-head", str(folder / "head"))
    host.start("target_server", "--listen", address, *options, "--check-integrity")
    return address


@pytest.fixture
def target(address: str) -> Iterator[RawSession]:
    session = RawSession(SimpleNamespace(address=address))  # type: ignore[arg-type]
    yield session
    session.close()


def opened(target: RawSession, temperature: float, change: Fill = lambda command: None) -> int:
    sequence_id = target.next_sequence_id()

    def fill(command: Any) -> None:
        opening(temperature)(command)
        command.open.uses_draft_head = True
        command.open.num_prompt_tokens = len(PROMPT)
        change(command)

    target.ask(sequence_id, fill)
    return sequence_id


def going_on(position: int, tail: list[int], num_more: int = NUM_MORE, num_next: int = 0, **fields: Any) -> Fill:
    def fill(command: Any) -> None:
        verify(position, tail, rule=MATCH)(command)
        command.verify.num_more_rounds, command.verify.num_next_drafts = num_more, num_next
        for name, value in fields.items():
            setattr(command.verify, name, value)

    return fill


def suggesting(position: int, tokens: list[int], is_last: bool = False) -> Fill:
    def fill(command: Any) -> None:
        command.suggest.position, command.suggest.is_last = position, is_last
        command.suggest.tokens.extend(tokens)

    return fill


def run_of(target: RawSession, command_id: int) -> list[Any]:
    """Returns all answers."""
    answers = [target.answer(command_id)]
    while answers[-1].has_more:
        answers.append(target.answer(command_id))
    return answers


class Asked:
    """A sequence whose rounds are asked for one by one, without drafts."""

    def __init__(self, target: RawSession, temperature: float, context: list[int] = PROMPT) -> None:
        self._target, self._id = target, opened(target, temperature)
        self.context, self._length = [*context], 0

    def extend(self, num_tokens: int) -> list[int]:
        """Returns the context with `num_tokens` more."""
        for _ in range(num_tokens):
            tail = self.context[self._length :]
            answer = self._target.ask(self._id, verify(self._length, tail, rule=MATCH))
            self._length = len(self.context)
            self.context += answer.verify_result.tokens
        return self.context


def follow(context: list[int], answers: list[Any]) -> int:
    """Adds the rounds' tokens to the context as a coordinator does; returns how many drafts were accepted."""
    drafts, num_accepted = list[int](), 0
    for answer in answers:
        result = answer.verify_result
        drafts = drafts or list(result.suggested_tokens)
        tokens, first = list(result.tokens), len(context)
        assert len(tokens) == len(drafts) + 1
        while len(context) - first < len(drafts) and tokens[len(context) - first] == drafts[len(context) - first]:
            context.append(tokens[len(context) - first])
            num_accepted += 1
        context.append(tokens[len(context) - first])
        drafts = list(result.next_drafts.tokens)
        assert not drafts or result.next_drafts.first_position == len(context)
    return num_accepted


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("num_next", [0, 1, 4])
def test_rounds_are_those_that_would_be_asked_for(target: RawSession, num_next: int, temperature: float) -> None:
    sequence_id, context = opened(target, temperature), [*PROMPT]
    answers = run_of(target, target.send(sequence_id, going_on(0, PROMPT, num_next=num_next))[0])
    assert [each.has_more for each in answers] == [True] * NUM_MORE + [False]
    follow(context, answers)
    assert len(context) >= len(PROMPT) + 1 + NUM_MORE
    asked = Asked(target, temperature)
    assert context == asked.extend(len(context) - len(PROMPT))
    # What follows the run is at the place where one round after the other would have ended.
    target.send(sequence_id, truncate(len(context) - 1))
    answer = target.ask(sequence_id, verify(len(context) - 1, context[-1:], rule=MATCH))
    assert [*context, *answer.verify_result.tokens] == asked.extend(1)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("num_right", [0, 1, 2, 5])
def test_suggested_drafts_are_checked_where_their_first_tokens_have_come(
    target: RawSession, num_right: int, first: int, temperature: float
) -> None:
    expected = Asked(target, temperature).extend(60)[len(PROMPT) :]
    guess = [*expected[first : first + num_right], (expected[first + num_right] + 1) % 500, 5, 6]
    sequence_id, context = opened(target, temperature), [*PROMPT]
    suggest = suggesting(len(PROMPT) + first, guess)
    answers = run_of(target, target.send(sequence_id, going_on(0, PROMPT, 20), suggest)[0])
    num_accepted = follow(context, answers)
    assert num_accepted == max(0, num_right - 1)
    assert context[len(PROMPT) :] == expected[: len(context) - len(PROMPT)]
    suggested = [list(answer.verify_result.suggested_tokens) for answer in answers]
    assert [each for each in suggested if each] == ([guess[1:]] if num_right else [])
    # No more tokens than without suggestions, for which there is room.
    assert len(answers) == 21 - num_accepted


def test_it_goes_on_behind_suggested_drafts_that_are_all_right(target: RawSession) -> None:
    """Whoever suggested them may have more; but in a forward pass of many, a sequence that waits misses the next one."""
    expected = Asked(target, 0.0).extend(23)[len(PROMPT) :]
    sequence_id, context = opened(target, 0.0), [*PROMPT]
    suggest = suggesting(len(PROMPT), expected[:6])
    answers = run_of(target, target.send(sequence_id, going_on(0, PROMPT, 20), suggest)[0])
    follow(context, answers)
    assert [answer.has_more for answer in answers] == [True] * 15 + [False]
    assert context[len(PROMPT) :] == expected[:21]


@pytest.mark.parametrize(("num_more", "num_answers"), [(4, 2), (5, 2), (6, 2), (7, 3)])
def test_it_does_not_go_on_where_accepted_suggestions_took_the_room(
    target: RawSession, num_more: int, num_answers: int
) -> None:
    """The client counted a token for each round."""
    expected = Asked(target, 0.0).extend(10)[len(PROMPT) :]
    suggest = suggesting(len(PROMPT), expected[:6])
    ids = target.send(opened(target, 0.0), going_on(0, PROMPT, num_more), suggest)
    assert len(run_of(target, ids[0])) == num_answers


def test_it_goes_on_behind_drafts_of_its_command(target: RawSession) -> None:
    expected = Asked(target, 0.0).extend(NUM_MORE + 4)[len(PROMPT) :]
    for drafts in (expected[:3], [*expected[:3], (expected[3] + 1) % 500]):
        command = going_on(0, PROMPT)

        def fill(message: Any, command: Fill = command, drafts: list[int] = drafts) -> None:
            command(message)
            message.verify.draft_tokens.extend(drafts)

        answers = run_of(target, target.send(opened(target, 0.0), fill)[0])
        assert list(answers[0].verify_result.tokens)[:4] == expected[:4]
        assert [token for answer in answers[1:] for token in answer.verify_result.tokens] == expected[4:]


def test_it_ends_where_it_is_told_to(target: RawSession) -> None:
    ids = target.send(opened(target, 0.0), going_on(0, PROMPT, 64), suggesting(len(PROMPT), [], is_last=True))
    assert len(run_of(target, ids[0])) == 1


def test_suggested_drafts_that_can_not_be_are_refused_by_name(target: RawSession) -> None:
    for tokens, said in (([5] * 17, "17 tokens"), ([500_000], "tokens is 500000; it must be token ids in [0, 512)")):
        sequence_id = opened(target, 0.0)
        _, command_id = target.send(sequence_id, going_on(0, PROMPT), suggesting(len(PROMPT), tokens))
        failure = target.answer(command_id).failure
        assert failure.status.code == INVALID_ARGUMENT
        assert said in failure.status.message


def test_many_go_on_at_once(target: RawSession) -> None:
    expected = [Asked(target, 0.7, PROMPT[: 5 + each]).extend(NUM_MORE + 1) for each in range(6)]
    commands = [(opened(target, 0.7), going_on(0, PROMPT[: 5 + each])) for each in range(6)]
    for number, command_id in enumerate(target.send_together(commands)):
        context = PROMPT[: 5 + number]
        follow(context, run_of(target, command_id))
        assert context == expected[number]


@pytest.mark.parametrize("num_next", [0, 3])
@pytest.mark.parametrize("num_taken", [1, 2, 5])
def test_a_truncate_ends_it_and_another_text_goes_on(target: RawSession, num_taken: int, num_next: int) -> None:
    sequence_id, context = opened(target, 0.0), [*PROMPT]
    command_id = target.send(sequence_id, going_on(0, PROMPT, num_more=64, num_next=num_next))[0]
    follow(context, [target.answer(command_id) for _ in range(num_taken)])
    other = [*context, 5, 6, 7]
    ids = target.send(
        sequence_id, truncate(len(context) - 1), verify(len(context) - 1, other[len(context) - 1 :], rule=MATCH)
    )
    assert [*other, *target.answer(ids[1]).verify_result.tokens] == Asked(target, 0.0, other).extend(1)


def test_a_release_ends_it(target: RawSession) -> None:
    free = target.describe().free_blocks
    sequence_id = opened(target, 0.0)
    command_id, _ = target.send(sequence_id, going_on(0, PROMPT, num_more=64), release)
    answer = target.answer(command_id)
    while answer.has_more:
        answer = target.answer(command_id)
    assert answer.WhichOneof("answer") == "failure"
    assert answer.failure.status.code == CANCELLED
    assert target.describe().free_blocks >= free


@pytest.mark.parametrize("name", ["eos_token_ids", "stop_token_ids"])
def test_it_ends_with_the_text(target: RawSession, name: str) -> None:
    expected = Asked(target, 0.0).extend(NUM_MORE + 1)[len(PROMPT) :]
    index = next(at for at in range(2, NUM_MORE) if expected[at] not in expected[:at])

    def ending(command: Any) -> None:
        getattr(command.open if name == "eos_token_ids" else command.open.sampling, name).append(expected[index])

    sequence_id = opened(target, 0.0, ending)
    answers = run_of(target, target.send(sequence_id, going_on(0, PROMPT))[0])
    assert [answer.verify_result.tokens[0] for answer in answers] == expected[: index + 1]


@pytest.mark.parametrize("num_next", [0, 4])
def test_it_ends_where_the_room_does(target: RawSession, num_next: int) -> None:
    prompt = [PROMPT[each % len(PROMPT)] for each in range(MAX_LEN - 8)]
    sequence_id, context = opened(target, 0.0), [*prompt]
    first = target.ask(sequence_id, verify(0, prompt[:-1], rule=MATCH))
    assert len(first.verify_result.tokens) == 1
    answers = run_of(target, target.send(sequence_id, going_on(len(prompt) - 1, prompt[-1:], 64, num_next))[0])
    follow(context, answers)
    assert len(context) <= MAX_LEN + 1
    assert context == Asked(target, 0.0, prompt).extend(len(context) - len(prompt))


def test_what_can_not_be_gone_on_with_is_refused_by_name(target: RawSession) -> None:
    cases = {
        "num_more_rounds is 65; it must be in [0, 64]": going_on(0, PROMPT, 65),
        "num_more_rounds is 'set'; it must be left out under `rejection`": going_on(0, PROMPT, rule=REJECTION),
        "num_more_rounds is 'set'; it must be left out under": going_on(0, PROMPT, lenience=0.5),
    }
    for said, fill in cases.items():
        failure = target.ask(opened(target, 0.0), fill).failure
        assert failure.status.code == INVALID_ARGUMENT
        assert said in failure.status.message
