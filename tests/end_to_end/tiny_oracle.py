"""What a tiny random model says by transformers, and what a request's controls make of that by plain numpy."""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from transformers import LlamaForCausalLM

from paceline.engine.models.dummy import dummy_config, make_dummy
from paceline.noise import gumbel, match_key
from paceline.sampling_params import SamplingParams

Floats = NDArray[np.float64]


@functools.cache
def tiny_model(name: str) -> LlamaForCausalLM:
    """transformers' model with the weights of dummy:NAME, at float64."""
    model = LlamaForCausalLM(dummy_config(name)).double().eval()
    _, tensors = make_dummy(name, torch.float32)
    assert model.load_state_dict(tensors, strict=False).unexpected_keys == []
    return model


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """So small a model on two threads takes many times as long where other processes want the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@torch.inference_mode()
def model_logits(name: str, tokens: Iterable[int]) -> Floats:
    """[num_tokens, vocab_size]"""
    with one_thread():
        return tiny_model(name)(torch.tensor([list(tokens)])).logits[0].numpy()


def adjusted(logits: Floats, sampling: SamplingParams, prompt: list[int], output: list[int]) -> Floats:
    """Penalties, bias, token lists, token by token: [vocab_size]."""
    logits = logits.copy()
    for token in {*prompt, *output}:
        if logits[token] > 0:
            logits[token] /= sampling.repetition_penalty
        else:
            logits[token] *= sampling.repetition_penalty
    for token, count in Counter(output).items():
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias.items():
        logits[token] += bias
    for token in range(len(logits)):
        is_allowed = not sampling.allowed_token_ids or token in sampling.allowed_token_ids
        if not is_allowed or token in sampling.banned_token_ids:
            logits[token] = -np.inf
    return logits


def adjusted_after(name: str, sampling: SamplingParams, prompt: list[int], output: list[int]) -> Floats:
    """The logits that the token after `output` is drawn from, temperature and truncation aside: [vocab_size]."""
    return adjusted(model_logits(name, prompt + output)[-1], sampling, prompt, output)


def oracle_ids(name: str, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """The target's own chain: greedy, or by `match` with the request's seed; one whole forward pass a token."""
    output: list[int] = []
    while len(output) < sampling.max_tokens:
        logits = adjusted_after(name, sampling, prompt, output)
        if not sampling.is_greedy:
            assert sampling.seed is not None
            logits = log_softmax(logits / sampling.temperature)
            logits += gumbel(match_key(sampling.seed, len(prompt) + len(output)), len(logits))
        output.append(int(logits.argmax()))
    return output


def oracle_logprobs(name: str, prompt: list[int], output: list[int], sampling: SamplingParams) -> Floats:
    """Of every token after each part of `output`: [num_tokens, vocab_size]."""
    rows = model_logits(name, prompt + output)[len(prompt) - 1 : -1]
    adjusted_rows = [adjusted(row, sampling, prompt, output[:index]) for index, row in enumerate(rows)]
    return log_softmax(np.array(adjusted_rows), axis=-1)
