"""A verify_result whose parts do not fit together is refused by name. No real target server sends one."""

import re
from typing import Any

import numpy as np
import pytest

from coordinator.acceptance import Proposal
from coordinator.remote.target import IDENTITY, SameModel, verify_result_from_answer
from paceline.errors import ConfigError, InvalidArgument
from paceline.speculation_params import Rule
from paceline.v1 import model_pb2, verify_pb2

SUPPORT = np.array([5, 6])
DRAFTS = Proposal([5, 6], [SUPPORT, SUPPORT], [np.full(2, 0.5, np.float32)] * 2)
# Of a verify result on two drafts.
MATCHED: dict[str, Any] = {"tokens": [5, 6, 7]}
WEIGHED: dict[str, Any] = {
    "tokens": [7], "support_probs": bytes(16), "outside_masses": bytes(16), "outside_tokens": [8, 9]
}  # fmt: skip


def test_verify_results_that_fit_are_accepted() -> None:
    assert verify_result_from_answer(verify_pb2.VerifyResult(**MATCHED), DRAFTS, Rule.MATCH, 1).tokens == [5, 6, 7]
    assert verify_result_from_answer(verify_pb2.VerifyResult(**WEIGHED), DRAFTS, Rule.REJECTION, 1).outside_tokens == [
        8,
        9,
    ]
    # Without drafts there is nothing to weigh.
    assert verify_result_from_answer(verify_pb2.VerifyResult(tokens=[5]), Proposal(), Rule.REJECTION, 1).tokens == [5]


@pytest.mark.parametrize(
    ("rule", "fields", "name"),
    [
        (Rule.MATCH, {"tokens": [5, 6]}, "tokens"),
        (Rule.MATCH, {"tokens": [5, 6, 7, 8]}, "tokens"),
        (Rule.MATCH, {**MATCHED, "lenient_accepts": [True]}, "lenient_accepts"),
        (Rule.REJECTION, {**WEIGHED, "tokens": []}, "tokens"),
        (Rule.REJECTION, {**WEIGHED, "support_probs": bytes(12)}, "support_probs"),
        (Rule.REJECTION, {**WEIGHED, "outside_masses": bytes(8)}, "outside_masses"),
        (Rule.REJECTION, {**WEIGHED, "outside_tokens": [8]}, "outside_tokens"),
    ],
)
def test_a_part_of_another_size_is_named(rule: Rule, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{name} is .*; it must be \d values"):
        verify_result_from_answer(verify_pb2.VerifyResult(**fields), DRAFTS, rule, 1)


@pytest.mark.parametrize("field", IDENTITY)
def test_a_target_that_may_generate_other_tokens_is_refused_naming_why(field: str) -> None:
    same, model_info = SameModel(), target_info(dtype="float32")
    same.check("one:1", model_info)
    same.check("two:2", target_info(dtype="float32"))
    value = 5 if field == "max_model_len" else "other"
    with pytest.raises(ConfigError, match=f"^the target server at three:3 has another {re.escape(IDENTITY[field])}: "):
        same.check("three:3", target_info(**{"dtype": "float32", field: value}))
    # It changes nothing for the others.
    same.check("one:1", model_info)


def target_info(**fields: Any) -> model_pb2.ModelInfo:
    return model_pb2.ModelInfo(**fields)
