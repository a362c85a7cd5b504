"""What a format forces is marked among the drafts, appended after them, and counted neither as proposed nor as accepted."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.context import MAX_FORCED_AT_ONCE, Context
from coordinator.format_grammars import make_grammar
from coordinator.guidance import Guidance
from coordinator.request import Request
from coordinator.stats import GenerationStats, Round
from coordinator.tokenizer import TextStream
from paceline.grammar import GrammarEngine
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.coordinator.contexts import SilentText
from tests.thinking import EOS_ID, make_backend

# A token is a byte: after each first letter the rest of its word is forced.
TOKENIZER = make_backend(has_special_marks=False)
ENGINE = GrammarEngine(TOKENIZER.to_str().encode(), TOKENIZER.get_vocab_size(), [EOS_ID])
PROMPT = [5, 6, 7]
WORDS = OutputFormat(regex="(one|two|six) (red|tan) (apple|berry)")


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def make_guidance(**fields: Any) -> Guidance:
    return Guidance(ENGINE.grammar(make_grammar(WORDS)), SamplingParams(**fields), len(PROMPT), frozenset({EOS_ID}))


def shape(before: str, drafts: str, room: int = 16, **fields: Any) -> tuple[str, str]:
    """Returns the drafts, and a mark under each: ^ if forced, - otherwise."""
    shaped = make_guidance(**fields).shape([*PROMPT, *ids(before)], Proposal(ids(drafts)), room)
    return TOKENIZER.decode(shaped.tokens), "".join("-^"[each] for each in shaped.is_forced)


@pytest.mark.parametrize(
    ("before", "drafts", "shaped", "marks"),
    [
        ("", "o", "one ", "-^^^"),
        ("", "one red", "one red ", "-^^^-^^^"),
        # What is not allowed ends the drafts, also where something else is forced.
        ("", "one six", "one ", "-^^^"),
        ("", "out", "one ", "-^^^"),
        ("", "x", "", ""),
        # At the end of the text nothing is forced.
        ("two tan ", "b", "berry", "-^^^^"),
        ("two tan ", "berry!", "berry", "-^^^^"),
    ],
)
def test_looked_up_drafts_follow_the_format(before: str, drafts: str, shaped: str, marks: str) -> None:
    assert shape(before, drafts) == (shaped, marks)


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_what_is_appended_fits_the_round(room: int) -> None:
    drafts, marks = shape("", "o", room)
    assert drafts == "one "[:room]
    assert marks == "-^^^"[:room]


def test_no_more_drafts_than_a_message_holds_are_appended() -> None:
    assert shape("", "one red berr", room=100) == ("one red berry", "-^^^-^^^-^^^^")
    wanted = OutputFormat(regex="(a|b)" + "c" * 40)
    guidance = Guidance(ENGINE.grammar(make_grammar(wanted)), SamplingParams(), 0, frozenset())
    assert len(guidance.shape([], Proposal(ids("a")), 100)) == 16


def test_a_forced_token_that_is_banned_is_none() -> None:
    (banned,) = ids("n")
    assert make_guidance().forced([*PROMPT, *ids("o")]) == banned
    assert make_guidance(banned_token_ids=(banned,)).forced([*PROMPT, *ids("o")]) is None
    assert make_guidance(allowed_token_ids=tuple(ids("o"))).forced([*PROMPT, *ids("o")]) is None


def drawn(text: str) -> Proposal:
    tokens = ids(text)
    return Proposal(tokens, [np.array([each, 1]) for each in tokens], [np.array([0.5, 0.5], np.float32)] * len(tokens))


def test_drawn_drafts_stay_whatever_they_are() -> None:
    shaped = make_guidance().shape(PROMPT, drawn("oxx"), 16)
    assert (shaped.tokens, shaped.is_forced) == (ids("oxx"), [False, False, False])


def test_a_forced_token_after_drawn_ones_is_certain() -> None:
    shaped = make_guidance().shape(PROMPT, drawn("o"), 16)
    assert shaped.tokens == ids("one ")
    assert [each.tolist() for each in shaped.supports[1:]] == [[each] for each in ids("ne ")]
    assert [each.tolist() for each in shaped.support_probs[1:]] == [[1.0]] * 3


def make_context(max_tokens: int = 100) -> Context:
    request = Request(
        "id", PROMPT, SamplingParams(seed=1, max_tokens=max_tokens), SpeculationParams(), (EOS_ID,), 1000,
        TOKENIZER.get_vocab_size(), grammar=ENGINE.grammar(make_grammar(WORDS)),
    )  # fmt: skip
    return Context(request, cast(TextStream, SilentText()))


def play(context: Context, stats: GenerationStats, drafts: str, num_accepted: int, last: str) -> list[Origin]:
    proposal = context.shape(Proposal(ids(drafts)))
    outcome = Outcome([*proposal.tokens[:num_accepted], *ids(last)], num_accepted, Origin.RECOVERED)
    emission = context.extend(outcome)
    stats.count(Round(proposal, VerifyResult([]), outcome, 0.0, 0.0, 0.0), emission)
    return emission.origins


def test_origins_are_those_without_drafts_and_choices_alone_are_counted() -> None:
    drafted, plain, stats = make_context(), make_context(), GenerationStats()
    assert "".join(play(drafted, stats, "", 0, "o")) == "RFFF"
    assert drafted.tokens == [*PROMPT, *ids("one ")]
    # Of the drafts "red b" and the rest of berry, "red " is accepted and an apple taken.
    assert "".join(play(drafted, stats, "red b", 4, "a")) == "AFFFRFFFF"
    without = ["".join(play(plain, GenerationStats(), "", 0, each)) for each in "ora"]
    assert without == ["RFFF", "RFFF", "RFFFF"]
    assert plain.tokens == drafted.tokens
    assert (stats.proposed, stats.accepted, stats.forced) == (2, 1, 10)
    assert (stats.rounds, stats.mean_acceptance_length) == (1, 2)
    assert drafted.is_finished
    assert drafted.num_forced == 10
    assert drafted.tokens_per_choice == 13 / 3


def test_the_first_choices_come_with_what_they_force() -> None:
    proposal = make_guidance().shape(PROMPT, Proposal(ids("one red b")), 16)
    kept = [TOKENIZER.decode(proposal.first_choices(num).tokens) for num in range(5)]
    assert kept == ["", "one ", "one red ", "one red berry", "one red berry"]
    assert [proposal.first_choices(num).num_choices() for num in range(5)] == [0, 1, 2, 3, 3]
    assert [proposal.num_choices(num) for num in (0, 1, 4, 5, 13)] == [0, 1, 1, 2, 3]


def test_others_get_their_turn_while_a_long_text_is_forced() -> None:
    """Each call asks the library for a bounded number of tokens, and together they append all of the text."""
    text = "o" + "ne" * 150
    request = replace(
        make_context(1000).request, grammar=ENGINE.grammar(make_grammar(OutputFormat(choice=(text, "two"))))
    )
    context = Context(request, cast(TextStream, SilentText()))
    emission = context.extend(Outcome(ids("o"), 0, Origin.RECOVERED))
    lengths = [len(emission.tokens)]
    while context.has_more_forced:
        context.append_forced(emission)
        lengths.append(len(emission.tokens))
    assert len(lengths) > 5
    assert max(after - before for before, after in pairwise([1, *lengths])) <= MAX_FORCED_AT_ONCE
    assert emission.tokens == ids(text)
    assert "".join(origin.name[0] for origin in emission.origins) == "R" + "F" * (len(text) - 1)
    assert emission.is_last
    assert (context.is_finished, context.num_forced) == (True, len(text) - 1)
