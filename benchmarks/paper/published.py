"""The numbers printed in the paper (2211.17192), and in a text on n-grams."""

from typing import NamedTuple


class Walltime(NamedTuple):
    """A row of tables 2 and 4. The target is T5-XXL; only table 4 has c and `expected`."""

    task: str
    draft: str
    temperature: int
    gamma: int
    alpha: float
    c: float
    expected: float
    measured: float


class Alpha(NamedTuple):
    """A row of table 3."""

    target: str
    draft: str
    temperature: int
    alpha: float


# Table 1, at c = 0: alpha, gamma, operations, speed.
TABLE_1 = (
    (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86),
)  # fmt: skip
TABLE_2_AND_4 = (
    Walltime("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    Walltime("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    Walltime("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    Walltime("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    Walltime("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    Walltime("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    Walltime("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    Walltime("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    Walltime("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    Walltime("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    Walltime("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    Walltime("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)
# By target, then draft: alpha at temperature 0 and at 1.
_TABLE_3 = {
    "GPT-like 97M": {"unigram": (0.03, 0.03), "bigram": (0.05, 0.05), "GPT-like 6M": (0.88, 0.89)},
    "T5-XXL, EnDe": {
        "unigram": (0.08, 0.07), "bigram": (0.20, 0.19), "T5-small": (0.75, 0.62), "T5-base": (0.80, 0.68),
        "T5-large": (0.82, 0.71),
    },
    "T5-XXL, CNNDM": {
        "unigram": (0.13, 0.08), "bigram": (0.23, 0.16), "T5-small": (0.65, 0.53), "T5-base": (0.73, 0.55),
        "T5-large": (0.74, 0.56),
    },
    "LaMDA 137B": {"LaMDA 100M": (0.61, 0.57), "LaMDA 2B": (0.71, 0.71), "LaMDA 8B": (0.75, 0.74)},
}  # fmt: skip
TABLE_3 = tuple(
    Alpha(target, draft, temperature, alphas[temperature])
    for target, drafts in _TABLE_3.items()
    for draft, alphas in drafts.items()
    for temperature in (0, 1)
)
LENIENCES = (1.0, 0.5, 0.3, 0.1)
# Table 5, T5-XXL on EnDe at temperature 1: alpha by lenience.
TABLE_5 = {
    "unigram": (0.07, 0.10, 0.11, 0.16),
    "bigram": (0.19, 0.23, 0.25, 0.32),
    "T5-small": (0.62, 0.71, 0.76, 0.84),
    "T5-base": (0.68, 0.80, 0.83, 0.90),
}
# Appendix A.5 on T5-small, by lenience: speed at temperature 1 with c = 0.015; alpha and speed at temperature 0 with
# c = 0.015 and gamma 8.
LENIENT_SPEED = (2.5, 3.1, 3.6, 5.0)
GREEDY_LENIENT_ALPHA = (0.75, 0.75, 0.80, 0.87)
GREEDY_LENIENT_SPEED = (3.3, 3.3, 3.9, 4.9)
LENIENT_COST = 0.015
GREEDY_LENIENT_GAMMA = 8

# akunu's chapter on n-gram speculation: accepted drafts of D = 4 by alpha, as printed.
AKUNU_DRAFTS = 4
AKUNU_ACCEPTED = {0.5: 0.94, 0.7: 2.05, 0.9: 3.28}
# The same text: what it says of kinds of text.
AKUNU_KINDS = {
    "high, above 0.8": "repetitive code, templates, JSON, text that mirrors the prompt",
    "medium, 0.4 to 0.7": "natural language with common phrases",
    "low, below 0.3": "creative text, proofs, varied conversation",
}
# Memory of its tables.
AKUNU_TABLES = "about 1 MB"
