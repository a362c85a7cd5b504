"""Each change of the logits against transformers' own processors and plain numpy; observations against scipy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_softmax, softmax
from transformers import (
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.logits_processors import process_logits
from paceline.engine.sampling.logprobs import RowLogprobs, compute_logprobs
from paceline.engine.sampling.specs import (
    Argmax,
    ArgmaxWithLenience,
    GumbelMax,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    Score,
    TokensBefore,
)
from paceline.sampling_params import SamplingParams
from tests.end_to_end.tiny_oracle import adjusted

VOCAB_SIZE = 200
PROMPT = [5, 9, 9, 120, 199, 0]
OUTPUT = [7, 5, 7, 7, 198]
NEVER_SEEN = sorted(set(range(VOCAB_SIZE)) - {*PROMPT, *OUTPUT})


def random_logits(rows: int, seed: int = 1) -> torch.Tensor:
    """Of both signs, wherever the penalized ids are."""
    logits = torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    logits[:, [5, 7]], logits[:, [9, 198]] = 2.5, -2.5
    return logits


def draw_with(
    sampling: SamplingParams, prompt: list[int] = PROMPT, output: list[int] = OUTPUT, banned: tuple[int, ...] = ()
) -> SampleSpec:
    before = TokensBefore(prompt, output) if sampling.has_penalties else None
    return Argmax(sampling, banned, before=before)


def adjust_row(logits: torch.Tensor, spec: SampleSpec) -> torch.Tensor:
    """logits: [vocab_size]."""
    rows = logits[None].clone()
    process_logits(rows, [spec])
    return rows[0]


def processed(processor: LogitsProcessor, logits: torch.Tensor, context: list[int]) -> torch.Tensor:
    return processor(torch.tensor([context]), logits[None].clone())[0]


@pytest.mark.parametrize("penalty", [1.3, 0.7, 50.0])
@pytest.mark.parametrize("output", [OUTPUT, []], ids=["prompt and output", "prompt alone"])
def test_repetition_penalty_is_transformers_over_prompt_and_output(penalty: float, output: list[int]) -> None:
    logits = random_logits(1)[0]
    expected = processed(RepetitionPenaltyLogitsProcessor(penalty), logits, PROMPT + output)
    ours = adjust_row(logits, draw_with(SamplingParams(repetition_penalty=penalty), output=output))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert torch.equal(ours[NEVER_SEEN], logits[NEVER_SEEN])


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.7), (-2.0, 1.25), (0.5, -0.25)])
def test_presence_and_frequency_penalties_count_the_output_alone(presence: float, frequency: float) -> None:
    logits = random_logits(1)[0]
    expected = logits.clone()
    for token, count in ((5, 1), (7, 3), (198, 1)):
        expected[token] -= presence + count * frequency
    sampling = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    torch.testing.assert_close(adjust_row(logits, draw_with(sampling)), expected, rtol=1e-6, atol=0)
    assert torch.equal(adjust_row(logits, draw_with(sampling, output=[])), logits), "nothing is generated yet"


def test_bias_is_transformers_sequence_bias() -> None:
    logits, bias = random_logits(1)[0], {3: 2.5, 150: -100.0, 199: 0.125}
    expected = processed(SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]), logits, [1])
    torch.testing.assert_close(adjust_row(logits, draw_with(SamplingParams(logit_bias=bias))), expected)


def test_banned_tokens_are_transformers_suppressed_tokens() -> None:
    logits = random_logits(1)[0]
    expected = processed(SuppressTokensLogitsProcessor([3, 150, 199]), logits, [1])
    assert torch.equal(adjust_row(logits, draw_with(SamplingParams(banned_token_ids=(3, 150, 199)))), expected)
    # Bans of the position, as those of ending before min_tokens, are the same thing.
    assert torch.equal(
        adjust_row(logits, draw_with(SamplingParams(banned_token_ids=(3,)), banned=(199, 150))), expected
    )


def test_only_allowed_tokens_keep_their_logits_and_a_ban_wins() -> None:
    logits = random_logits(1)[0]
    sampling = SamplingParams(allowed_token_ids=(8, 3, 8, 60), banned_token_ids=(60, 61))
    ours = adjust_row(logits, draw_with(sampling))
    assert torch.equal(ours[[3, 8]], logits[[3, 8]])
    assert ours.isfinite().nonzero().flatten().tolist() == [3, 8]


def test_order_is_penalties_then_bias_then_lists() -> None:
    """Token 5 stands in prompt and output, with a logit that a penalty after the bias would divide, not multiply."""
    logits = torch.full((VOCAB_SIZE,), -1.0)
    logits[5] = 3.0
    sampling = SamplingParams(
        repetition_penalty=2.0,
        presence_penalty=1.75,
        frequency_penalty=0.5,
        logit_bias={5: -10.0, 6: 10.0, 8: 100.0},
        allowed_token_ids=(5, 6, 8),
        banned_token_ids=(8,),
    )
    ours = adjust_row(logits, draw_with(sampling))
    # Repetition, then presence and frequency, then bias: 3 / 2 - (1.75 + 0.5) - 10.
    assert ours[5] == 3.0 / 2 - 2.25 - 10
    assert ours[6] == -1.0 + 10
    assert ours[8] == -torch.inf, "a bias does not bring back a banned token"
    assert ours.isfinite().sum() == 2


def test_penalties_before_any_token_change_nothing() -> None:
    """A draft model with another vocabulary may share none of the text's tokens."""
    logits = random_logits(1)[0]
    penalties = SamplingParams(repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=1.0)
    assert torch.equal(adjust_row(logits, draw_with(penalties, [], [])), logits)


MANY = [
    SamplingParams(repetition_penalty=1.5),
    SamplingParams(presence_penalty=1.0, logit_bias={7: 3.0}),
    SamplingParams(frequency_penalty=-1.0, banned_token_ids=(1, 2)),
    SamplingParams(),
    SamplingParams(allowed_token_ids=(4, 5, 6)),
    SamplingParams(repetition_penalty=0.5, presence_penalty=2.0, frequency_penalty=2.0, logit_bias={0: 1.0, 5: -1.0}),
]


def test_rows_are_adjusted_each_by_its_own_draw_alone() -> None:
    logits = random_logits(2 * len(MANY))
    specs = []
    for row in range(len(logits)):
        context = torch.randint(VOCAB_SIZE, (2, 30), generator=torch.Generator().manual_seed(row)).tolist()
        specs.append(draw_with(MANY[row % len(MANY)], *context))
    together = logits.clone()
    process_logits(together, specs)
    for row, spec in enumerate(specs):
        assert torch.equal(together[row], adjust_row(logits[row], spec))
        prompt, output = (spec.before.prompt, spec.before.output) if spec.before else ([], [])
        expected = adjusted(logits[row].double().numpy(), spec.sampling, prompt, output)
        np.testing.assert_allclose(together[row].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(together[3], logits[3]), "nothing asked, nothing changed"


def test_scoring_looks_at_the_models_own_distribution() -> None:
    logits = random_logits(1)
    [seen] = see(logits, [Score(MANY[-1], (1, 2), 17, num_logprobs=3)])
    np.testing.assert_allclose(seen.chosen, [log_softmax(logits[0].double().numpy())[17]], rtol=1e-6)


def see(logits: torch.Tensor, specs: list[SampleSpec]) -> list[RowLogprobs | None]:
    """As a step of the engine does it: the sampler's adjusted logits are what is looked at."""
    logits = logits.clone()
    return compute_logprobs(logits, specs, CpuSampler().sample(logits, specs))


def test_entropy_is_scipys_of_the_adjusted_distribution_over_the_vocabularys_logarithm() -> None:
    logits = random_logits(len(MANY))
    # Temperature and truncation do not touch it.
    shaped = [replace(sampling, temperature=0.3, top_k=2, seed=1) for sampling in MANY]
    specs = [replace(draw_with(sampling), wants_entropy=True) for sampling in (*MANY, *shaped)]
    for row, seen in enumerate(see(torch.cat([logits, logits]), specs)):
        row %= len(MANY)
        distribution = softmax(adjusted(logits[row].double().numpy(), MANY[row], PROMPT, OUTPUT))
        assert seen is not None
        assert seen.entropy == pytest.approx(stats.entropy(distribution) / np.log(VOCAB_SIZE), rel=1e-6)


def test_entropy_of_one_certain_token_is_0_and_of_all_alike_is_1() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    certain = Argmax(SamplingParams(allowed_token_ids=(9,)), (), wants_entropy=True)
    alike = Argmax(SamplingParams(), (), wants_entropy=True)
    assert [seen.entropy for seen in see(logits, [certain, alike]) if seen] == pytest.approx([0, 1], abs=1e-12)


def test_logprobs_are_of_all_tokens_that_may_be_emitted_with_the_likeliest_sorted() -> None:
    sampling = replace(MANY[-1], temperature=0.5, top_p=0.9, seed=1)
    support = np.array([11, 5, 150])
    options = {"before": TokensBefore(PROMPT, OUTPUT), "num_logprobs": 4}
    specs: list[SampleSpec] = [
        Argmax(replace(sampling, temperature=0), (3,), **options),
        ArgmaxWithLenience(replace(sampling, temperature=0), (3,), 44, 0.5, **options),
        GumbelMax(sampling, (3,), 1234, **options),
        SampleTruncated(sampling, (3,), 0.4, 16, 0.9, **options),
        SampleComplement(sampling, (3,), support, 0.4, **options),
        Argmax(sampling, (3,)),
    ]
    logits = random_logits(len(specs))
    samples = CpuSampler().sample(logits.clone(), specs)
    seen = see(logits, specs)
    tokens = [samples[0], samples[1].token, samples[2], samples[3].token]
    asked = [[tokens[0]], [tokens[1], 44], [tokens[2]], [tokens[3]], [*support, samples[4].token]]
    assert seen[5] is None
    for row, ids in enumerate(asked):
        distribution = log_softmax(
            adjusted(logits[row].double().numpy(), replace(sampling, banned_token_ids=(3,)), PROMPT, OUTPUT)
        )
        assert seen[row].chosen.dtype == np.float32
        np.testing.assert_allclose(seen[row].chosen, distribution[ids], rtol=1e-5)
        assert seen[row].top_ids.tolist() == np.argsort(-distribution)[:4].tolist()
        np.testing.assert_allclose(seen[row].top, np.sort(distribution)[::-1][:4], rtol=1e-5)


def test_observing_does_not_depend_on_the_rows_beside() -> None:
    logits = random_logits(len(MANY))
    specs = [replace(draw_with(sampling), wants_entropy=True, num_logprobs=2) for sampling in MANY]
    together = see(logits, specs)
    for row, spec in enumerate(specs):
        [alone] = see(logits[row : row + 1], [spec])
        assert alone.entropy == together[row].entropy
        assert alone.chosen.tolist() == together[row].chosen.tolist()
        assert (alone.top_ids.tolist(), alone.top.tolist()) == (
            together[row].top_ids.tolist(),
            together[row].top.tolist(),
        )
