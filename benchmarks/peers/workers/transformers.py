"""transformers' `generate`: plain, with an assistant model, and with prompt lookup."""

from typing import Any

import torch
import transformers

from benchmarks.peers.protocol import Settings, serve

NUM_LOOKUP_TOKENS = 4


class Transformers:
    def __init__(self, settings: Settings) -> None:
        self.version = f"transformers {transformers.__version__}"
        torch.set_num_threads(settings.threads)
        self._model = _load(settings.model_folder, torch.bfloat16)
        self._temperature = settings.temperature
        # The model itself in int8: Paceline's own draft is not a complete model. These products give float32 only.
        assistant = _load(settings.model_folder, torch.float32)
        self._assistant = torch.ao.quantization.quantize_dynamic(assistant, {torch.nn.Linear}, dtype=torch.qint8)

    def generate(self, prompts: list[list[int]], tokens: int, mode: str) -> list[list[int]]:
        options: dict[str, Any] = {"do_sample": False}
        if self._temperature:
            options = {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0}
        if mode == "model":
            options["assistant_model"] = self._assistant
        elif mode == "ngrams":
            options["prompt_lookup_num_tokens"] = NUM_LOOKUP_TOKENS
        # Padded on the left: new tokens follow the prompts' last ones.
        length = max(map(len, prompts))
        ids = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            output = self._model.generate(ids, attention_mask=mask, max_new_tokens=tokens, pad_token_id=0, **options)
        return output[:, length:].tolist()

    def close(self) -> None:
        pass


def _load(folder: str, dtype: torch.dtype) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    # Nothing ends a generation but its length.
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    return model


if __name__ == "__main__":
    serve(Transformers)
