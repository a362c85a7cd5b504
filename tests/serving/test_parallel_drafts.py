"""Drafts from one forward pass are what transformers says at the masks, and leave nothing in the cache."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.special import softmax
from transformers import AutoModelForCausalLM

from paceline.engine.models.dummy import NUM_MASKS, make_dummy
from paceline.engine.models.shapes import MASK_VECTORS
from paceline.noise import gumbel, match_key
from tests.end_to_end.tiny_oracle import Floats, one_thread, tiny_model
from tests.hosted import Host, HostedService
from tests.model_folder import change_config, write_model
from tests.serving.raw_session import RawSession, propose, truncate

NAME = "tiny-32-b"
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SAMPLED, GREEDY, COUPLED = 1, 2, 3
SEED = 1


@pytest.fixture
def draft(parallel_draft_server: HostedService) -> Iterator[RawSession]:
    session = RawSession(parallel_draft_server)
    yield session
    session.close()


@torch.inference_mode()
def logits_at(tokens: list[int], num_drafts: int) -> Floats:
    """Of the drafts behind `tokens`: [num_drafts, 32]."""
    model = tiny_model(NAME)
    masks = make_dummy(f"{NAME}-masks", torch.float32)[1][MASK_VECTORS].double()
    rows = torch.cat([model.get_input_embeddings()(torch.tensor(tokens)), masks[: num_drafts - 1]])
    with one_thread():
        return model(inputs_embeds=rows[None]).logits[0, -num_drafts:].numpy()


@pytest.mark.parametrize("num_drafts", [1, 2, NUM_MASKS + 1])
def test_greedy_drafts_are_the_likeliest_tokens_at_the_masks(draft: RawSession, num_drafts: int) -> None:
    answer = draft.ask(draft.open(0.0), propose(0, PROMPT, num_drafts, GREEDY))
    assert list(answer.proposal.tokens) == logits_at(PROMPT, num_drafts).argmax(axis=1).tolist()
    assert answer.proposal.num_fed_drafts == 0


def test_no_more_are_proposed_than_there_are_masks_for(draft: RawSession) -> None:
    answer = draft.ask(draft.open(0.0), propose(0, PROMPT, 16, GREEDY))
    assert len(answer.proposal.tokens) == NUM_MASKS + 1


def coupled(tokens: list[int], num_drafts: int) -> list[int]:
    """Drawn with the noise of the positions behind `tokens`."""
    noise = np.stack([gumbel(match_key(SEED, len(tokens) + index), 32) for index in range(num_drafts)])
    return [int(token) for token in (logits_at(tokens, num_drafts) + noise).argmax(axis=1)]


def test_coupled_drafts_are_drawn_with_the_noise_of_their_positions(draft: RawSession) -> None:
    answer = draft.ask(draft.open(1.0, SEED), propose(0, PROMPT, 4, COUPLED))
    assert list(answer.proposal.tokens) == coupled(PROMPT, 4)


def test_sampled_drafts_come_with_the_distribution_at_their_own_mask(draft: RawSession) -> None:
    proposal = draft.ask(draft.open(1.0, SEED), propose(0, PROMPT, 4, SAMPLED)).proposal
    probs, ids = np.frombuffer(proposal.support_probs, "<f4"), np.array(proposal.support_token_ids)
    expected, at = softmax(logits_at(PROMPT, 4), axis=1), 0
    for index, size in enumerate(proposal.support_sizes):
        kept = expected[index, ids[at : at + size]]
        assert kept.sum() > 0.99
        np.testing.assert_allclose(probs[at : at + size], kept / kept.sum(), rtol=1e-3)
        assert proposal.tokens[index] in ids[at : at + size]
        at += size


def test_the_cache_holds_the_tail_and_no_mask(draft: RawSession) -> None:
    sequence = draft.open(0.0)
    draft.ask(sequence, propose(0, PROMPT, 4, GREEDY))
    # Longer than what the masks took, shorter, and after a Truncate.
    tokens = [*PROMPT]
    for more in ([7, 8, 9, 10, 11, 12], [13], [14, 15]):
        answer = draft.ask(sequence, propose(len(tokens), more, 4, GREEDY))
        tokens += more
        assert list(answer.proposal.tokens) == logits_at(tokens, 4).argmax(axis=1).tolist()
    draft.send(sequence, truncate(len(tokens) - 2))
    answer = draft.ask(sequence, propose(len(tokens) - 2, [20], 3, GREEDY))
    assert list(answer.proposal.tokens) == logits_at([*tokens[:-2], 20], 3).argmax(axis=1).tolist()


def test_masks_that_steps_divide_come_out_the_same(draft: RawSession) -> None:
    long = [number * 7 % 31 + 1 for number in range(200)]
    answer = draft.ask(draft.open(1.0, SEED), propose(0, long, 4, COUPLED))
    assert list(answer.proposal.tokens) == coupled(long, 4)


def test_penalties_go_step_by_step(draft: RawSession) -> None:
    def fill(command) -> None:
        command.open.sampling.temperature = 0.0
        command.open.sampling.seed = SEED
        command.open.sampling.repetition_penalty = 1.2
        command.open.num_prompt_tokens = 1

    draft.ask(99, fill)
    answer = draft.ask(99, propose(0, PROMPT, 4, GREEDY))
    assert answer.proposal.num_fed_drafts == 3


def test_one_mask_token_of_the_vocabulary_drafts_too(host: Host, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As in amd/PARD-*: transformers reads the same folder, and the mask's token id behind the text."""
    folder, mask = tmp_path_factory.mktemp("pard"), 7
    write_model(folder)
    change_config(folder, pard_token=mask)
    service = host.start("draft_server", "--model", str(folder), "--dtype", "float32", "--quantization", "none")
    session = RawSession(service)
    try:
        answer = session.ask(session.open(0.0), propose(0, PROMPT, 6, GREEDY))
    finally:
        session.close()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode(), one_thread():
        logits = model(torch.tensor([[*PROMPT, *[mask] * 5]])).logits[0, -6:]
    assert list(answer.proposal.tokens) == logits.argmax(dim=-1).tolist()
