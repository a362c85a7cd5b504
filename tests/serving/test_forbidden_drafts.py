"""A target server rejects drafts that the grammar forbids, whoever made them, and what comes after changes nothing."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coordinator.format_grammars import make_grammar
from paceline.output_format import OutputFormat
from tests.hosted import Host
from tests.serving.raw_session import RawSession, opening, substance_of, verify
from tests.thinking import make_backend, write_thinking_model

# A token is a byte.
TOKENIZER = make_backend(has_special_marks=False)
GRAMMAR = make_grammar(OutputFormat(regex="(one|two|six) (red|tan) (apple|berry)"))
PROMPT = TOKENIZER.encode("Say it.").ids
MATCH, REJECTION = 1, 2


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


@pytest.fixture(scope="module")
def target(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawSession]:
    folder = tmp_path_factory.mktemp("bytes")
    write_thinking_model(folder)
    session = RawSession(host.start("target_server", "--model", str(folder), "--kv-cache-memory", "8MiB"))
    yield session
    session.close()


def ask(target: RawSession, drafts: str, rule: int, banned: str = "") -> Any:
    def begin(command: Any) -> None:
        opening()(command)
        command.open.num_prompt_tokens = len(PROMPT)
        command.open.grammar = GRAMMAR
        command.open.sampling.banned_token_ids.extend(ids(banned))

    sequence = target.next_sequence_id()
    assert target.ask(sequence, begin).WhichOneof("answer") == "open_ack"
    return substance_of(target.ask(sequence, verify(0, PROMPT, ids(drafts), rule=rule)))


@pytest.mark.parametrize(
    ("drafts", "num_allowed", "choices"),
    [("x", 0, "ots"), ("out", 1, "n"), ("one six red", 4, "rt"), ("two tan berries", 12, "y")],
)
def test_a_forbidden_draft_is_rejected(target: RawSession, drafts: str, num_allowed: int, choices: str) -> None:
    matched, drawn = ask(target, drafts, MATCH), ask(target, drafts, REJECTION)
    assert matched.tokens[: num_allowed + 1] == ask(target, drafts[:num_allowed], MATCH).tokens
    # Each support has the draft alone.
    probs, masses = np.frombuffer(drawn.support_probs, "<f4"), np.frombuffer(drawn.outside_masses, "<f8")
    assert (probs[: num_allowed + 1] > 0).tolist() == [True] * num_allowed + [False]
    assert masses[num_allowed] == 1
    assert drawn.outside_tokens[num_allowed] in ids(choices)


def test_no_dead_end_is_behind_a_forbidden_draft(target: RawSession) -> None:
    # Between them nothing but "n" is allowed.
    first_invalid = [ask(target, drafts, REJECTION, banned="n") for drafts in ("one", "oxx", "xo")]
    assert [
        each.first_invalid_position if each.HasField("first_invalid_position") else None for each in first_invalid
    ] == [1, 1, None]


def test_the_server_goes_on_with_no_round_by_itself(target: RawSession) -> None:
    """Tokens that the grammar forces are the coordinator's to append."""

    def begin(command: Any) -> None:
        opening()(command)
        command.open.num_prompt_tokens = len(PROMPT)
        command.open.grammar = GRAMMAR

    def going_on(command: Any) -> None:
        verify(0, PROMPT, rule=MATCH)(command)
        command.verify.num_more_rounds = 8

    sequence = target.next_sequence_id()
    target.ask(sequence, begin)
    answer = target.ask(sequence, going_on)
    assert answer.WhichOneof("answer") == "verify_result"
    assert not answer.has_more
