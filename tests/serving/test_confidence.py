"""A draft server stops where its confidence falls, as transformers' probabilities say it must."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from tests.end_to_end.tiny_oracle import model_logits
from tests.serving.raw_session import RawSession, propose

MOST = 6
PROMPT = [3, 1, 4, 1, 5]
SAMPLED, GREEDY, COUPLED = 1, 2, 3


def stopping(min_probability: float, draft_mode: int) -> Callable[[Any], None]:
    def fill(command: Any) -> None:
        propose(0, PROMPT, MOST, draft_mode)(command)
        command.propose.min_probability = min_probability

    return fill


def drafted(draft: RawSession, min_probability: float, draft_mode: int, temperature: float) -> Any:
    answer = draft.ask(draft.open(temperature), stopping(min_probability, draft_mode))
    assert answer.WhichOneof("answer") == "proposal", answer
    return answer.proposal


@pytest.mark.parametrize(("draft_mode", "temperature"), [(GREEDY, 0.0), (COUPLED, 0.5)], ids=["greedy", "coupled"])
def test_drafting_stops_behind_the_token_that_makes_the_product_too_small(
    draft: RawSession, draft_mode: int, temperature: float
) -> None:
    whole = list(drafted(draft, 0.0, draft_mode, temperature).tokens)
    logits = model_logits("tiny", PROMPT + whole)[len(PROMPT) - 1 : -1] / (temperature or 1.0)
    products = np.cumprod(softmax(logits, axis=-1)[range(MOST), whole])
    for num_kept in range(1, MOST):
        # Between two products: so that rounding decides nothing.
        least = float(np.sqrt(products[num_kept - 1] * (products[num_kept - 2] if num_kept > 1 else 1.0)))
        assert list(drafted(draft, least, draft_mode, temperature).tokens) == whole[:num_kept]


def test_a_sampled_token_that_ends_the_draft_is_sent_with_its_distribution(draft: RawSession) -> None:
    whole = drafted(draft, 0.0, SAMPLED, 1.0)
    stopped = drafted(draft, 1.0, SAMPLED, 1.0)
    assert list(stopped.tokens) == list(whole.tokens)[:1]
    assert len(stopped.support_sizes) == 1
    assert list(stopped.support_token_ids) == list(whole.support_token_ids)[: whole.support_sizes[0]]


def test_a_confidence_above_1_is_refused(draft: RawSession) -> None:
    answer = draft.ask(draft.open(), stopping(1.5, GREEDY))
    assert answer.failure.status.message == "min_probability is 1.5; it must be in [0, 1]"
