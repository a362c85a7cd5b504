"""The text model in a multimodal checkpoint."""

from collections.abc import Mapping
from typing import Any

# By `model_type` of transformers. Without an image, their text models run as they would alone; others, such as PaliGemma's,
# would not.
MULTIMODAL = ("gemma3", "gemma4", "mistral3", "qwen3_5")
# Beginnings of the text model's names, old and new, and what they are alone.
_TEXT = {"language_model.lm_head.": "lm_head.", "language_model.model.": "model.", "model.language_model.": "model."}
# Beginnings of the other names.
_PARTS = ("vision_tower", "multi_modal_projector", "visual", "embed_vision", "audio_tower", "embed_audio")
_OTHERS = tuple(f"{prefix}{part}." for prefix in ("", "model.") for part in _PARTS)


def text_part(source: Any, tensors: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns config and tensors of the text model."""
    named = {_text_name(name): tensor for name, tensor in tensors.items()}
    found = {name: tensor for name, tensor in named.items() if name is not None}
    config = source.text_config
    config.tie_word_embeddings = source.tie_word_embeddings or config.tie_word_embeddings
    return config, found


def _text_name(name: str) -> str | None:
    """Returns a tensor's name in the text model alone; None if it belongs to another part."""
    if name.startswith(_OTHERS):
        return None
    old = next((prefix for prefix in _TEXT if name.startswith(prefix)), "")
    return _TEXT.get(old, "") + name.removeprefix(old)
