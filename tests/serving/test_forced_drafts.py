"""Under a grammar a draft server feeds forced tokens with the choice before them, and its length counts choices."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coordinator.format_grammars import make_grammar
from paceline.output_format import OutputFormat
from paceline.v1 import propose_pb2, sampling_pb2
from tests.hosted import Host
from tests.serving.raw_session import RawSession, opening, propose, substance_of
from tests.thinking import make_backend, write_thinking_model

# A token is a byte: after each first letter the rest of its word is forced.
TOKENIZER = make_backend(has_special_marks=False)
WORDS = "(one|two|six) (red|tan) (apple|berry)"
PROMPT = TOKENIZER.encode("Say it.").ids
SAMPLED, GREEDY, COUPLED = 1, 2, 3
MODES = {"greedy": (GREEDY, 0.0), "coupled": (COUPLED, 1.0), "sampled": (SAMPLED, 1.0)}


@pytest.fixture(scope="module")
def draft(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawSession]:
    folder = tmp_path_factory.mktemp("bytes")
    write_thinking_model(folder)
    flags = ("--model", str(folder), "--kv-cache-memory", "8MiB", "--no-prefix-caching")
    session = RawSession(host.start("draft_server", *flags))
    yield session
    session.close()


def ask(draft: RawSession, mode: str, max_choices: int, num_draft_tokens: int = 16, **fields: Any) -> Any:
    """`fields`: more of Propose."""
    draft_mode, temperature = MODES[mode]

    def begin(command: Any) -> None:
        opening(temperature)(command)
        command.open.num_prompt_tokens = len(PROMPT)
        command.open.grammar = make_grammar(OutputFormat(regex=WORDS))

    def fill(command: Any) -> None:
        propose(0, PROMPT, num_draft_tokens, draft_mode)(command)
        command.propose.MergeFrom(propose_pb2.Propose(max_choices=max_choices, **fields))

    sequence = draft.next_sequence_id()
    assert draft.ask(sequence, begin).WhichOneof("answer") == "open_ack"
    return substance_of(draft.ask(sequence, fill))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_choices", [1, 2, 3, 4])
def test_a_forward_for_each_choice(draft: RawSession, mode: str, max_choices: int) -> None:
    before = draft.engine_steps
    proposal = ask(draft, mode, max_choices)
    text = TOKENIZER.decode(list(proposal.tokens))
    pattern = ["[ots]", "(one|two|six) [rt]", "(one|two|six) (red|tan) [ab]"][min(max_choices, 3) - 1]
    # The last choice is not fed, and what it forces is not drafted.
    assert re.fullmatch(pattern, text)
    assert proposal.num_fed_drafts == len(text) - 1
    assert draft.engine_steps - before == min(max_choices, 3)


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 5, 8, 9])
def test_what_is_forced_does_not_exceed_the_tokens_asked_for(draft: RawSession, num_draft_tokens: int) -> None:
    proposal = ask(draft, "greedy", 4, num_draft_tokens)
    # A choice is drafted only if it fits after the tokens that the previous one forces.
    assert len(proposal.tokens) == max(num for num in (1, 5, 9) if num <= num_draft_tokens)


def test_forced_tokens_are_certain(draft: RawSession) -> None:
    proposal = ask(draft, "sampled", 2, min_probability=1e-30)
    probs, sizes = np.frombuffer(proposal.support_probs, "<f4"), list(proposal.support_sizes)
    ends = np.cumsum(sizes)
    assert (len(proposal.tokens), sizes[1:4]) == (5, [1, 1, 1])
    assert list(proposal.support_token_ids[ends[0] : ends[3]]) == list(proposal.tokens[1:4])
    assert probs[ends[0] : ends[3]].tolist() == [1.0] * 3
    confidences = np.frombuffer(proposal.confidences, "<f4").tolist()
    assert confidences[1:4] == [1.0] * 3
    assert 0 < confidences[0] < 1


def test_forced_tokens_leave_the_smoothed_entropy(draft: RawSession) -> None:
    rule = sampling_pb2.EntropyAdaptive(bounds=sampling_pb2.Bounds(min=1, max=8), ema_beta=0.5)
    proposal = ask(draft, "greedy", 2, entropy_stop=propose_pb2.EntropyStop(rule=rule))
    entropies, emas = (np.frombuffer(each, "<f4").tolist() for each in (proposal.entropies, proposal.entropy_emas))
    assert entropies[1:4] == [0.0] * 3
    assert emas[1:4] == [emas[0]] * 3
    assert emas[4] != emas[0]
