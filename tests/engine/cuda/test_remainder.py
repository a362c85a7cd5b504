"""What the kernels leave to torch goes there some rows at a time: memory has a bound, and results are the same."""

import numpy as np
import pytest
import torch

from paceline.engine.cuda.sampling import encoding
from paceline.engine.sampling import shared_vocabulary
from paceline.engine.sampling.logprobs import compute_logprobs
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Rule
from target_server.verify_job import VerifyJob, VerifyJobResult, VerifySpec
from tests.engine.cuda.test_runner import TOKENS, Engine, make_cpu, make_gpu

MOST_ROWS = 2


def score(engine: Engine) -> VerifyJobResult:
    sequence = engine.sequence(SamplingParams(seed=1), TOKENS[:3])
    spec = VerifySpec([], [], Rule.MATCH, num_logprobs=2, num_prompt_logprobs=2)
    [result] = engine.run([VerifyJob(sequence, TOKENS[3:8], spec)])
    return result


def test_a_prompts_log_probabilities_take_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def spy(logits: torch.Tensor, *rest: object) -> object:
        sizes.append(len(logits))
        return compute_logprobs(logits, *rest)  # type: ignore[arg-type]

    theirs = score(make_cpu())
    monkeypatch.setattr(encoding, "REMAINDER_ROWS", MOST_ROWS)
    monkeypatch.setattr(shared_vocabulary, "compute_logprobs", spy)
    ours = score(make_gpu(0))
    assert sizes == [2, 2, 1]
    assert len(ours.prompt_logprobs) == len(theirs.prompt_logprobs) == 4
    for one, other in zip(ours.prompt_logprobs + ours.logprobs, theirs.prompt_logprobs + theirs.logprobs, strict=True):
        assert one.top_ids.tolist() == other.top_ids.tolist()
        np.testing.assert_allclose(one.top, other.top, rtol=1e-4)
        np.testing.assert_allclose(one.chosen, other.chosen, rtol=1e-4)


class EvenAfterOdd:
    """In place of a guide: behind an odd token only even ones may follow, and the other way round."""

    def mask(self, completion: list[int]) -> np.ndarray:
        bits = np.arange(64) % 2 != completion[-1] % 2
        return np.packbits(np.tile(bits, 8), bitorder="little").view(np.uint32)

    def is_over(self, completion: list[int]) -> bool:
        return False


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", Rule)
def test_a_grammars_masks_hold_for_every_row(temperature: float, rule: Rule) -> None:
    drafts = [2, 5, 8]
    supports = [np.array([each, each + 1]) for each in drafts] if rule is Rule.REJECTION else []
    found = []
    for engine in (make_gpu(0), make_cpu()):
        sequence = engine.sequence(SamplingParams(seed=1, temperature=temperature), TOKENS[:3])
        sequence.guide = EvenAfterOdd()  # type: ignore[assignment]
        [result] = engine.run([VerifyJob(sequence, [*TOKENS[3:5], 1], VerifySpec(drafts, supports, rule))])
        found.append(result)
    ours, theirs = found
    assert ours.tokens == theirs.tokens
    assert [(one.token, one.mass > 0) for one in ours.complements] == [
        (other.token, other.mass > 0) for other in theirs.complements
    ]
    before = [1, *drafts]
    given = [(one.token, at) for at, one in enumerate(ours.complements)] if ours.complements else []
    given += list(zip(ours.tokens, range(4) if rule is Rule.MATCH else [3], strict=True))
    assert all(token % 2 != before[at] % 2 for token, at in given)
    # What the mask leaves out of a support has no probability.
    assert [one.support_probs[1] for one in ours.complements] == [0] * len(ours.complements)
