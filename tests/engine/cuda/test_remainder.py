"""What the kernels leave to torch goes there some rows at a time: memory has a bound, and results are the same."""

import numpy as np
import pytest
import torch

from paceline.engine.cuda.sampling import encoding
from paceline.engine.sampling.logprobs import compute_logprobs
from paceline.sampling import SamplingParams
from paceline.speculation import Rule
from target_server.verifier import VerifyJob, VerifyResult, VerifySpec
from tests.engine.cuda.test_runner import TOKENS, Engine, make_cpu, make_gpu

MOST_ROWS = 2


def score(engine: Engine) -> VerifyResult:
    sequence = engine.sequence(SamplingParams(seed=1), TOKENS[:3])
    spec = VerifySpec([], [], Rule.MATCH, num_logprobs=2, num_prompt_logprobs=2)
    [result] = engine.run([VerifyJob(sequence, TOKENS[3:8], spec)])
    return result


def test_a_prompts_log_probabilities_take_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def spy(logits: torch.Tensor, *rest: object) -> object:
        sizes.append(len(logits))
        return compute_logprobs(logits, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "REMAINDER_ROWS", MOST_ROWS)
    monkeypatch.setattr(encoding, "compute_logprobs", spy)
    ours, theirs = score(make_gpu(0)), score(make_cpu())
    assert sizes == [2, 2, 1]
    assert len(ours.prompt_logprobs) == len(theirs.prompt_logprobs) == 4
    for one, other in zip(ours.prompt_logprobs + ours.logprobs, theirs.prompt_logprobs + theirs.logprobs, strict=True):
        assert one.top_ids.tolist() == other.top_ids.tolist()
        np.testing.assert_allclose(one.top, other.top, rtol=1e-4)
        np.testing.assert_allclose(one.chosen, other.chosen, rtol=1e-4)
