"""Model weights: a model's name -> its config, tensors and tokenizer files.

folder              config.json, *.safetensors, tokenizer.json
file                a GGUF file, read in place, or converted once into the cache folder (see `gguf`)
known name          a model of paceline/catalog, such as smollm2-135m; fetched on first use
dummy:NAME          random weights in a published shape, for timing and tests
anything else       a hub id; huggingface_hub fetches it
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig

from paceline.catalog.known_models import MODELS
from paceline.catalog.pull import TextProgress, resolve
from paceline.engine.models.architectures import ARCHITECTURES
from paceline.engine.models.consistency import EMBEDDING, HEAD, are_equal, require_declared_biases, settle_head
from paceline.engine.models.dummy import dummy_tokenizer_files, make_dummy
from paceline.engine.models.ends import find_ends, read_object, read_vocabulary
from paceline.engine.models.gguf.conversion import converted
from paceline.engine.models.gguf.file import read_gguf
from paceline.engine.models.gguf.tensors import FileTensor, Parts
from paceline.engine.models.model_config import ModelConfig, TextConfig
from paceline.engine.models.mtp import take_mtp
from paceline.engine.models.multimodal import MULTIMODAL, text_part
from paceline.engine.models.shapes import MASK_VECTORS, Tensors, as_tensor
from paceline.errors import ConfigError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# Where older processors of multimodal models have the template, or several by their names, as the only value of an object.
PROCESSOR_TEMPLATE = "chat_template.json"
# Folder of further chat templates, such as tool_use.jinja.
NAMED_TEMPLATES = "additional_chat_templates"
# Key in a distilled draft's config. Its value is the name, as for `--model`, of the model whose embedding, head and
# tokenizer the draft uses.
LENDER_KEY = "paceline_target"
LENT = (EMBEDDING, HEAD)
# Config key of published parallel drafts (PARD, 2504.18583), e.g. amd/PARD-Llama-3.2-1B: the token id of the mask. They are
# trained to draft 8 tokens per forward pass.
MASK_KEY, NUM_MASKS = "pard_token", 7
# The scales of a weight of 8 bits have the weight's name plus this suffix.
SCALE = "_scale"
# The same tensors under Mistral's own names.
UNREAD = "consolidated*.safetensors"
Progress = Callable[[str], None]
ConfigT = TypeVar("ConfigT", bound=TextConfig)


@dataclass(frozen=True, slots=True)
class LoadedModel(Generic[ConfigT]):
    name: str
    config: ConfigT
    tensors: Tensors
    tokenizer_files: dict[str, bytes]
    weights_fingerprint: str
    # The tensors of the MTP head in a checkpoint that transformers' modules run, if it has one (see `mtp`).
    mtp: Tensors = field(default_factory=dict)
    # Drops the file's pages that were read.
    drop_pages: Callable[[], None] = lambda: None

    @property
    def tokenizer_fingerprint(self) -> str:
        """Hex digest of all tokens and their ids. Raises ConfigError if tokenizer.json can't be read."""
        with _naming(self.name):
            tokens = [sorted(ids.items()) for ids in read_vocabulary(self.tokenizer_files)]
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]


def load_model(
    name: str,
    dtype: torch.dtype,
    progress: Progress = lambda _: None,
    device: str = "cpu",
    in_place: bool = False,
    implementation: str = ModelConfig.implementation,
    borrowers: tuple[Path, ...] = (),
) -> LoadedModel[Any]:
    """Loads a model. Raises ConfigError if it is not found or invalid.

    `device`: for random weights; all others are loaded to the CPU. `in_place`: keep the matrices of a GGUF file
    quantized. `implementation`: see EngineConfig; the config is a ModelConfig if it is our own. `borrowers`: the folders of
    the drafts that this model lends to.
    """
    if name.startswith("dummy:"):
        dummy, tensors = make_dummy(name.removeprefix("dummy:"), dtype, device)
        config = _read_text(dummy.source, implementation)
        files = dummy_tokenizer_files(config.vocab_size)
        return LoadedModel(name, config, tensors, files, hashlib.sha256(name.encode()).hexdigest()[:16])
    if in_place and (file := find_gguf(name, progress)) is not None:
        model = read_gguf(file)
        read = {key: _in_dtype(tensor, dtype) for key, tensor in model.tensors.items()}
        named = {file.name: model.config.eos_token_id}
        config = _config_with_ends(name, model.config, named, model.tokenizer_files, implementation)
        return LoadedModel(name, config, read, model.tokenizer_files, model.fingerprint, drop_pages=model.drop_pages)
    folder = find_folder(name, dtype, progress)
    source = _read_config(name, folder)
    tensors, fingerprint = _read_tensors(name, folder, dtype)
    if source.model_type in MULTIMODAL:
        source, tensors = text_part(source, tensors)
    lender = getattr(source, LENDER_KEY, None)
    files = read_tokenizer_files(name, folder)
    if lender is not None:
        # A distilled draft uses its target's embedding, head and tokenizer, so its folder does not store them.
        if not isinstance(lender, str) or folder.resolve() in borrowers:
            raise ConfigError(
                f"model {name!r}: its {LENDER_KEY} is {lender!r}; it must be a model that needs no such draft"
            )
        lent = load_model(lender, dtype, progress, in_place=True, borrowers=(*borrowers, folder.resolve()))
        tensors |= {key: as_tensor(lent.tensors[key], dtype) for key in LENT if key in lent.tensors}
        lenders_fingerprint = lent.weights_fingerprint
        fingerprint = hashlib.sha256((fingerprint + lenders_fingerprint).encode()).hexdigest()[:16]
        files = lent.tokenizer_files
    settle_head(source, tensors)
    if "tokenizer.json" not in files:
        raise ConfigError(f"model {name!r}: {folder} has no tokenizer.json")
    config = _config_with_ends(name, source, _named_ends(name, folder), files, implementation)
    # Our own layers know no such heads, and refuse their tensors.
    mtp = {} if isinstance(config, ModelConfig) else take_mtp(source, tensors)
    if lender is None and source.model_type in ARCHITECTURES and find_gguf(name) is None:
        with _naming(name):
            require_declared_biases(source, tensors)
    if isinstance(config, ModelConfig):
        # Only ours: transformers' models convert what they load, and keep some in float32, such as biases of routers.
        tensors = {key: each.to(dtype) if each.is_floating_point() else each for key, each in tensors.items()}
    if hasattr(source, MASK_KEY):
        tensors[MASK_VECTORS] = _same_masks(name, getattr(source, MASK_KEY), tensors)
    return LoadedModel(name, config, tensors, files, fingerprint, mtp)


def read_tokenizer_files(name: str, folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder's tokenizer by name, with all chat templates in one of them. Raises ConfigError."""
    files = {file: (folder / file).read_bytes() for file in TOKENIZER_FILES if (folder / file).exists()}
    named = {path.stem: path.read_text(encoding="utf-8") for path in sorted((folder / NAMED_TEMPLATES).glob("*.jinja"))}
    of_processor = folder / PROCESSOR_TEMPLATE
    if not named and ("chat_template.jinja" in files or not of_processor.exists()):
        return files
    with _naming(name):
        config = read_object("tokenizer_config.json", files.get("tokenizer_config.json", b"{}"))
        source, template = "tokenizer_config.json", config.get("chat_template")
        if "chat_template.jinja" in files:
            template = files["chat_template.jinja"].decode()
        elif template and not named:
            return files
        elif not template and of_processor.exists():
            source, template = (
                PROCESSOR_TEMPLATE,
                read_object(PROCESSOR_TEMPLATE, of_processor.read_bytes()).get("chat_template"),
            )
        if not _is_template(template) and (template or source == PROCESSOR_TEMPLATE):
            raise ConfigError(
                f"its {source} has the chat_template {template!r}; it must be a text, or texts by their names"
            )
    # As transformers has it, a file's template goes before one of the same name in the config.
    templates = {**_by_name(template), **named}
    if templates.keys() == {"default"}:
        return files | {"chat_template.jinja": templates["default"].encode()}
    config["chat_template"] = [{"name": key, "template": each} for key, each in templates.items()]
    files.pop("chat_template.jinja", None)
    return files | {"tokenizer_config.json": json.dumps(config).encode()}


def _is_template(template: Any) -> bool:
    """Returns whether it is a text, or several as {name: text} or [{"name": name, "template": text}]."""
    if isinstance(template, list):
        return bool(template) and all(
            isinstance(each, dict) and _is_template(each.get("template")) for each in template
        )
    if isinstance(template, dict):
        return bool(template) and all(isinstance(each, str) for each in template.values())
    return isinstance(template, str)


def _by_name(template: Any) -> dict[str, str]:
    if isinstance(template, list):
        return {str(each.get("name", "default")): each["template"] for each in template}
    if isinstance(template, dict):
        return template
    return {"default": template} if template else {}


def _same_masks(name: str, token: Any, tensors: Tensors) -> torch.Tensor:
    """Returns the mask's vector for each mask: [NUM_MASKS, hidden_size]. Raises ConfigError for an unknown token id."""
    embedding = tensors.get(EMBEDDING, torch.empty(0, 0))
    if not (isinstance(token, int) and 0 <= token < len(embedding)):
        raise ConfigError(f"model {name!r}: {MASK_KEY} is {token!r}; it must be a token id in [0, {len(embedding)})")
    return embedding[token].expand(NUM_MASKS, -1).clone()


def find_folder(name: str, dtype: torch.dtype, progress: Progress) -> Path:
    """Returns a model's folder, in which a GGUF file is converted to `dtype`. Raises ConfigError if not found."""
    if (file := find_gguf(name, progress)) is not None:
        return converted(file, dtype, progress)
    path = resolve(name, TextProgress(progress)) or Path(os.path.expanduser(name))
    if path.is_dir():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        known = ", ".join(MODELS)
        raise ConfigError(
            f"model {name!r}: no such folder or GGUF file, and neither a hub id nor a known name ({known}, dummy:NAME)"
        )
    return _fetched(name, progress)


def find_gguf(name: str, progress: Progress = lambda _: None) -> Path | None:
    """Returns the model's GGUF file, if it is one. Raises ConfigError if the file does not exist."""
    path = resolve(name, TextProgress(progress)) or Path(os.path.expanduser(name))
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise ConfigError(f"model {name!r}: {error.strerror}") from error
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        raise ConfigError(f"model {name!r}: no such file")
    return None


def _in_dtype(tensor: FileTensor | Parts, dtype: torch.dtype) -> torch.Tensor | FileTensor | Parts:
    parts = (tensor,) if isinstance(tensor, FileTensor) else tensor
    if all(part.is_in_blocks for part in parts):
        return tensor
    return as_tensor(tensor, dtype if len(parts[0].shape) > 1 else torch.float32)


def _fetched(name: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    progress(f"fetching {name} from the hub")
    try:
        patterns = ["*.json", "*.safetensors", "*.jinja"]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=[UNREAD]))
    except Exception as error:  # huggingface_hub raises a dozen unrelated types for "not there"
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model {name!r} could not be fetched from the hub: {reason}") from error


def _read_config(name: str, folder: Path) -> PreTrainedConfig:
    # Here, because transformers then reads the sources of all its models, and a GGUF file needs none.
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers and huggingface_hub raise many types for a bad config
        raise ConfigError(
            f"model {name!r}: {folder} has no usable config.json: {str(error).splitlines()[0]}"
        ) from error


def _named_ends(name: str, folder: Path) -> dict[str, Any]:
    files = [folder / file for file in ("config.json", "generation_config.json")]
    with _naming(name):
        contents = {file.name: read_object(file.name, file.read_bytes()) for file in files if file.exists()}
    # A multimodal checkpoint's text model has a config of its own.
    if isinstance(of_text := contents["config.json"].get("text_config"), dict):
        contents["config.json's text_config"] = of_text
    return {place: content.get("eos_token_id") for place, content in contents.items()}


def _read_text(source: PreTrainedConfig, implementation: str) -> TextConfig:
    """Raises ConfigError if the implementation can't run the model."""
    is_own = implementation == ModelConfig.implementation
    if implementation == TextConfig.implementation or not (is_own or source.model_type in ARCHITECTURES):
        return TextConfig.from_transformers(source)
    try:
        return ModelConfig.from_transformers(source)
    except ConfigError as error:
        raise ConfigError(f"{error}{_alternative(source)}") from error


def _alternative(source: PreTrainedConfig) -> str:
    try:
        TextConfig.from_transformers(source)
    except ConfigError:
        return ""
    return "; with `--implementation transformers` it runs"


def _config_with_ends(
    name: str, source: PreTrainedConfig, named: Mapping[str, Any], files: Mapping[str, bytes], implementation: str
) -> TextConfig:
    config = _read_text(source, implementation)
    with _naming(name):
        return replace(config, eos_token_ids=find_ends(named, files, config.vocab_size))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"model {name!r}: {error}") from error


def _read_tensors(name: str, folder: Path, dtype: torch.dtype) -> tuple[Tensors, str]:
    files = sorted(file for file in folder.glob("*.safetensors") if not file.match(UNREAD))
    if not files:
        raise ConfigError(f"model {name!r}: {folder} has no .safetensors files")
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    tensors: Tensors = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118 - not a dict
                    tensor = opened.get_tensor(key)
                    if key in tensors and not are_equal(tensor, tensors[key]):
                        raise ConfigError(f"model {name!r}: {file} has another {key!r} than a file before it")
                    tensors[key] = tensor
        except SafetensorError as error:
            raise ConfigError(f"model {name!r}: {file} can't be read: {error}") from error
        with open(file, "rb") as raw:
            # All of it: two trainings of one model may have equal headers.
            digest.update(hashlib.file_digest(raw, "sha256").digest())
    with _naming(name):
        return _as_numbers(tensors, dtype), digest.hexdigest()[:16]


def _as_numbers(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> Tensors:
    """Multiplies 8-bit weights by their scales, in `dtype`. Raises ConfigError if scales are missing."""
    numbers: Tensors = {}
    for key, tensor in tensors.items():
        if key.endswith(SCALE) and key.removesuffix(SCALE) in tensors:
            continue
        scale = tensors.get(key + SCALE)  # [out_features] float32
        if scale is not None:
            if scale.shape != tensor.shape[:1]:
                raise ConfigError(
                    f"tensor {key + SCALE!r} has shape {tuple(scale.shape)}; it must be {tuple(tensor.shape[:1])}, "
                    "a scale for each output feature"
                )
            tensor = (tensor.float() * scale.unsqueeze(1)).to(dtype)
        elif tensor.itemsize == 1:
            # Codes without scales are not the model's weights.
            raise ConfigError(
                f"tensor {key!r} has type {str(tensor.dtype).removeprefix('torch.')} and no {key + SCALE!r}; supported: "
                "float32, bfloat16, float16, and 8 bits with a scale for each output feature"
            )
        numbers[key] = tensor
    return numbers
