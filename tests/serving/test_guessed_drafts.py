"""Guesses change how fast a draft server proposes, never what: right, half right and wrong ones, against none."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.hosted import HostedService
from tests.serving.raw_session import RawSession, opening, propose, substance_of, truncate

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LONG_PROMPT = [number * 7 % 31 + 1 for number in range(60)]
# Behind the prompt's 8 tokens, more than the rest of a block of 16.
MOST = 12
SAMPLED, GREEDY, COUPLED = 1, 2, 3
MODES = {"greedy": (GREEDY, 0.0), "coupled": (COUPLED, 1.0), "sampled": (SAMPLED, 1.0)}
VOCAB_SIZE = 512


def wrong(tokens: Sequence[int]) -> list[int]:
    return [(token + 1) % VOCAB_SIZE for token in tokens]


# What is guessed, by what is drafted without guesses.
GUESSES: dict[str, Callable[[list[int]], list[int]]] = {
    "right": lambda drafts: drafts[:-1],
    "one alone": lambda drafts: drafts[:1],
    "half right": lambda drafts: drafts[:5] + wrong(drafts[5:-1]),
    "right behind a wrong one": lambda drafts: wrong(drafts[:1]) + drafts[1:-1],
    "wrong": lambda drafts: wrong(drafts[:-1]),
    "more than there are drafts": lambda drafts: [*drafts, 1, 2, 3, 4],
}
# Forwards for MOST drafts.
STEPS = {
    "right": 1, "one alone": MOST - 1, "half right": MOST - 5, "right behind a wrong one": MOST, "wrong": MOST,
    "more than there are drafts": 1,
}  # fmt: skip


@pytest.fixture
def small_step_draft(small_step_draft_server: HostedService) -> Iterator[RawSession]:
    session = RawSession(small_step_draft_server)
    yield session
    session.close()


def guessing(guess: Sequence[int], draft_mode: int, position: int = 0, tail: Sequence[int] = PROMPT) -> Any:
    def fill(command: Any) -> None:
        propose(position, list(tail), MOST, draft_mode)(command)
        command.propose.guess_tokens.extend(guess)

    return fill


def ask(session: RawSession, mode: str, guess: Sequence[int] = (), prompt: Sequence[int] = PROMPT) -> Any:
    draft_mode, temperature = MODES[mode]
    return substance_of(session.ask(session.open(temperature), guessing(guess, draft_mode, tail=prompt)))


@pytest.mark.parametrize("name", GUESSES)
@pytest.mark.parametrize("mode", MODES)
def test_a_proposal_is_the_same_with_any_guesses(draft: RawSession, mode: str, name: str) -> None:
    alone = ask(draft, mode)
    assert len(alone.tokens) == MOST
    before = draft.engine_steps
    # Tokens, supports, q and the cache's length, to the last bit.
    assert ask(draft, mode, GUESSES[name](list(alone.tokens))) == alone
    assert draft.engine_steps - before == STEPS[name]


@pytest.mark.parametrize("name", GUESSES)
@pytest.mark.parametrize("mode", MODES)
def test_guesses_that_steps_divide_come_out_the_same(small_step_draft: RawSession, mode: str, name: str) -> None:
    alone = ask(small_step_draft, mode, prompt=LONG_PROMPT)
    assert ask(small_step_draft, mode, GUESSES[name](list(alone.tokens)), LONG_PROMPT) == alone


@pytest.mark.parametrize("name", GUESSES)
def test_the_cache_holds_the_tail_and_the_drafts(draft: RawSession, name: str) -> None:
    alone, guessed = draft.open(), draft.open()
    drafts = list(draft.ask(alone, guessing((), SAMPLED)).proposal.tokens)
    answer = draft.ask(guessed, guessing(GUESSES[name](drafts), SAMPLED))
    length = len(PROMPT) + MOST - 1
    assert answer.proposal.num_fed_drafts == MOST - 1
    assert draft.ask(guessed, propose(length + 1, [1], 1)).failure.cache_length == length
    # After a full acceptance, and after a rejection of all but two drafts.
    for position in (length, len(PROMPT) + 2):
        for sequence in (alone, guessed):
            draft.send(sequence, truncate(position))
        tail = [*drafts[position - len(PROMPT) :][:1], 7]
        expected, found = (draft.ask(sequence, propose(position, tail, 4)) for sequence in (alone, guessed))
        assert substance_of(found) == substance_of(expected)


def test_sequences_with_and_without_guesses_share_steps(draft: RawSession) -> None:
    expected = {mode: ask(draft, mode) for mode in MODES}
    cases = [(mode, guess) for mode in MODES for guess in (*GUESSES.values(), lambda drafts: [])]
    commands = []
    for mode, guess in cases:
        draft_mode, temperature = MODES[mode]
        fill = guessing(guess(list(expected[mode].tokens)), draft_mode)
        commands.append((draft.open(temperature), fill))
    for (mode, _), command_id in zip(cases, draft.send_together(commands), strict=True):
        assert substance_of(draft.answer(command_id)) == expected[mode]


@pytest.mark.parametrize("name", GUESSES)
def test_penalties_count_the_guesses_before_a_draft(draft: RawSession, name: str) -> None:
    def fill_open(command: Any) -> None:
        opening()(command)
        command.open.sampling.repetition_penalty = 1.5
        command.open.sampling.frequency_penalty = 1.0

    found: list[Any] = []
    for sequence_id in (1, 2):
        draft.ask(sequence_id, fill_open)
        guess = GUESSES[name](list(found[0].tokens)) if found else []
        found.append(substance_of(draft.ask(sequence_id, guessing(guess, SAMPLED))))
    assert found[1] == found[0]


@pytest.mark.parametrize("name", GUESSES)
@pytest.mark.parametrize("min_probability", [0.5, 1e-6, 1e-12])
def test_an_unsure_draft_stops_at_the_same_token(draft: RawSession, name: str, min_probability: float) -> None:
    whole = list(ask(draft, "sampled").tokens)
    found = []
    for guess in ((), GUESSES[name](whole)):

        def fill(command: Any, guess: Sequence[int] = guess) -> None:
            guessing(guess, SAMPLED)(command)
            command.propose.min_probability = min_probability

        found.append(substance_of(draft.ask(draft.open(), fill)))
    assert found[1] == found[0]
    assert len(found[0].tokens) < MOST


def test_the_entropy_rule_drafts_step_by_step(draft: RawSession) -> None:
    whole = list(ask(draft, "sampled").tokens)
    found = []
    for guess in ((), whole[:-1], wrong(whole[:-1])):

        def fill(command: Any, guess: Sequence[int] = guess) -> None:
            guessing(guess, SAMPLED)(command)
            command.propose.entropy_stop.rule.bounds.max = MOST
            command.propose.entropy_stop.rule.ema_beta = 0.5

        found.append(substance_of(draft.ask(draft.open(), fill)))
    assert found[1] == found[2] == found[0]


def test_a_model_that_fills_masks_needs_no_guesses(parallel_draft_server: HostedService) -> None:
    session = RawSession(parallel_draft_server)
    alone, guessed = (
        substance_of(session.ask(session.open(0.0), guessing(guess, GREEDY))) for guess in ((), [1, 2, 3])
    )
    session.close()
    assert guessed == alone


@pytest.mark.parametrize(
    ("guess", "message"),
    [
        ([1] * 17, "guess_tokens is '17 tokens'; it must be at most 16 tokens"),
        ([1, VOCAB_SIZE], "guess_tokens is 512; it must be token ids in [0, 512)"),
    ],
    ids=["17 guesses", "an id outside the vocabulary"],
)
def test_bad_guesses_are_refused(draft: RawSession, guess: list[int], message: str) -> None:
    assert draft.ask(draft.open(), guessing(guess, GREEDY)).failure.status.message == message
