"""A GGUF file with a model's weights in bfloat16, for llama.cpp.

Made from the quantized file that our folder is converted from, so it has the same numbers. The folder itself would not
do: llama.cpp orders query and key rows differently and needs the tokenizer's tables, which the quantized file has.
"""

import os
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants

from paceline.engine.models.weights import find_gguf

# The writer makes these itself.
WRITTEN_ANYWAY = ("GGUF.", "general.architecture", "general.file_type")


def bf16_gguf(name: str, folder: Path) -> Path:
    """Returns the file of a model alias, made on first use."""
    source = packaged_gguf(name)
    made = folder / f"{source.name.removesuffix('.Q4_1.gguf')}.BF16.gguf"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        _convert(GGUFReader(source), unfinished)
        unfinished.rename(made)
    return made


def packaged_gguf(name: str) -> Path:
    """Returns the quantized file itself."""
    found = find_gguf(name)
    assert found is not None
    return found


def _convert(source: GGUFReader, file: Path) -> None:
    architecture = source.fields["general.architecture"].contents()
    writer = GGUFWriter(file, architecture)
    writer.add_file_type(LlamaFileType.MOSTLY_BF16)
    for key, entry in source.fields.items():
        if not key.startswith(WRITTEN_ANYWAY):
            element = entry.types[1] if entry.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, entry.contents(), entry.types[0], element)
    for tensor in source.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            # Norms: llama.cpp computes them in float32 only.
            writer.add_tensor(tensor.name, values)
        else:
            rounded = quants.quantize(values, GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, rounded, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
