"""Pre-tokenizers of byte-level vocabularies by `tokenizer.ggml.pre`, as in llama.cpp's `llama-vocab.cpp`.

Merges were learned within the pieces of one split, and another yields tokens that the model rarely saw, so an unknown
name is rejected. The patterns are from each model's tokenizer.json.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from paceline.errors import ConfigError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_MINICPM5 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+|{_PUNCTUATION}|{_SPACES}"
# Words that end in lower case, then words in upper case.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT_4O = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
# Cased letters, and what DeepSeek-LLM counts as punctuation.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_MARKS = "!-/:-~！-／：-～‘-‟\u3000-。"
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class Splitting:
    # Each pattern splits the pieces that the one before left.
    patterns: tuple[str, ...]
    # A piece that is a token by itself is not built from merges.
    ignores_merges: bool = False
    # Whether prompts begin with BOS by default.
    adds_bos: bool = False
    # Unicode's composed form comes first.
    composes: bool = False

    @property
    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Splits text, and maps bytes to the vocabulary's characters."""
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    @property
    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composes else None


DEFAULT = "default"
_SPLITTINGS: dict[tuple[str, ...], Splitting] = {
    # llama.cpp's default for files without the key, e.g. from before April 2024.
    (DEFAULT,): Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("gpt-2", "gigachat", "a.x-4.0", "mellum", "trillion", "granite-docling"): Splitting((_GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b", "mellum2"): Splitting((r"\p{N}", _GPT2)),
    ("qwen2",): Splitting((_QWEN2,), composes=True),
    ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"): Splitting((_QWEN2,)),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0"): Splitting(
        (_LLAMA3,), ignores_merges=True, adds_bos=True
    ),
    ("smaug-bpe", "dbrx"): Splitting((_LLAMA3,)),
    ("minicpm5",): Splitting((r"\p{N}{1,3}", _MINICPM5), ignores_merges=True),
    ("seed-coder",): Splitting((_SEED_CODER,)),
    ("tekken",): Splitting((_TEKKEN,), ignores_merges=True, adds_bos=True),
    ("gpt-4o", "kanana2"): Splitting((_GPT_4O,)),
    ("deepseek-llm",): Splitting((r"[\r\n]", rf"\s?[{_CASED}]+", rf"\s?[{_MARKS}]+", r"\s+$", _CJK, r"\p{N}+")),
    ("deepseek-coder",): Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    ("deepseek-v3",): Splitting((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3)),
    ("viking",): Splitting((r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")),
}
SPLITTINGS = {name: splitting for names, splitting in _SPLITTINGS.items() for name in names}


def find_splitting(name: str) -> Splitting:
    """Returns the split by name. Raises ConfigError if it is unknown."""
    if name not in SPLITTINGS:
        raise ConfigError(
            f"its tokenizer.ggml.pre {name!r} is not supported; supported: {', '.join(sorted(SPLITTINGS))}"
        )
    return SPLITTINGS[name]
