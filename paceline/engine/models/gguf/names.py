"""llama.cpp's tensor names -> Hugging Face's."""

from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

_OUTSIDE_LAYERS = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
_IN_A_LAYER = (
    "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight",
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
)  # fmt: skip


def tensor_names(architecture: str, num_layers: int) -> dict[str, str]:
    """Hugging Face's name for each of llama.cpp's, of all tensors that we can use in a model of this architecture."""
    identifier = next(known for known, name in MODEL_ARCH_NAMES.items() if name == architecture)
    theirs = get_tensor_name_map(identifier, num_layers)
    ours = [*_OUTSIDE_LAYERS, *(f"model.layers.{i}.{name}" for i in range(num_layers) for name in _IN_A_LAYER)]
    pairs = ((theirs.get_name(name, (".weight", ".bias")), name) for name in ours)
    return {their_name: name for their_name, name in pairs if their_name is not None}
