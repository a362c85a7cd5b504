"""transformers' generate on the same GPU: plain, and assisted by the small model. Random weights, eager attention."""

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.forwards import CONTEXT
from paceline.engine.models.dummy import dummy_config

TOKENS = 64


def load(name: str) -> Any:
    """A dummy shape in bfloat16."""
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            dummy_config(name.removeprefix("dummy:")), dtype=torch.bfloat16, attn_implementation="eager"
        )
    model.generation_config.eos_token_id = None
    return model.eval()


def measure(target: str, draft: str) -> dict[str, Any]:
    """Tokens a second, one at a time."""
    model, assistant = load(target), load(draft)
    prompt = torch.arange(100, 100 + CONTEXT, device="cuda")[None]
    found = {}
    for name, extra in (("plain", {}), ("assisted", {"assistant_model": assistant})):
        for is_timed in (False, True):
            torch.cuda.synchronize()
            started_s = time.perf_counter()
            with torch.inference_mode():
                model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), do_sample=False, pad_token_id=0,
                    max_new_tokens=TOKENS if is_timed else 8, **extra,
                )  # fmt: skip
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started_s
        found[name] = TOKENS / seconds
        print(f"transformers, {name}: {found[name]:.1f} tokens/s")
    return found
