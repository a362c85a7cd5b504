"""transformers' generate on the same GPU: plain, and assisted by the small model. Random weights, eager attention."""

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results
from paceline.engine.models.dummy import dummy_config

TOKENS = 64


def measure(options: Options, results: Results) -> None:
    """Measures tokens per second of one sequence, and of our target's step alone."""
    model, assistant = load(options.target), load(options.draft)
    prompt = torch.arange(100, 100 + options.prompt_tokens, device="cuda")[None]
    for name, extra in (("plain", {}), ("assisted", {"assistant_model": assistant})):
        generate(model, prompt, 8, extra)
        found = TOKENS / generate(model, prompt, TOKENS, extra)
        results.put(**{f"{name}_tokens_per_s": found})
        print(f"transformers, {name}: {found:.1f} tokens/s", flush=True)
        ours = results.of("forwards").get("target, one row")
        if name == "plain" and ours is not None:
            ratio = 1e3 / ours["whole_ms"] / found
            results.put(our_step_of_plain=ratio)
            print(f"our plain step, without services: {ratio:.2f} x transformers")


def load(name: str) -> Any:
    """Loads a dummy shape in bfloat16."""
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            dummy_config(name.removeprefix("dummy:")), dtype=torch.bfloat16, attn_implementation="eager"
        )
    model.generation_config.eos_token_id = None
    return model.eval()


@torch.inference_mode()
def generate(model: Any, prompt: torch.Tensor, tokens: int, extra: dict[str, Any]) -> float:
    """Returns seconds."""
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, pad_token_id=0, max_new_tokens=tokens, **extra
    )
    torch.cuda.synchronize()
    return time.perf_counter() - started_s
