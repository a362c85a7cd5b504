"""The processor's dot product of four codes with four numbers. All variants are exact: no sum overflows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from paceline.engine.cpu.kernels.processor import has_features

_BYTE, _SHORT = ir.IntType(8), ir.IntType(16)
# Of the rows' numbers.
_LARGEST = 127


class Sum(ABC):
    """A sum in each lane that grows by four codes times four numbers."""

    @abstractmethod
    def add(self, builder: Any, codes: Any, numbers: Any) -> None:
        """Adds a word of unsigned codes in each lane times a word of signed numbers."""

    @abstractmethod
    def total(self, builder: Any) -> Any: ...


class DotInstructions(ABC):
    """Instructions that compute such sums."""

    # What users know them by; output features of a vector; for how many rows there is code: the sums of the most of them
    # fit into registers; LLVM's name of the feature.
    name: str
    lanes: int
    row_counts: Sequence[int]
    feature: str

    @property
    def is_available(self) -> bool:
        return has_features(self.feature)

    @abstractmethod
    def sum_from(self, start: Any, bits: int) -> Sum:
        """Returns a sum with an initial value, for codes of `bits` bits."""


class VnniInstructions(DotInstructions):
    """vpdpbusd of AVX512-VNNI (16 output features) or AVX-VNNI (8)."""

    def __init__(self, name: str, lanes: int, row_counts: Sequence[int], feature: str) -> None:
        self.name, self.lanes, self.row_counts, self.feature = name, lanes, row_counts, feature

    def sum_from(self, start: Any, bits: int) -> Sum:
        return _VnniSum(start)


class _VnniSum(Sum):
    def __init__(self, start: Any) -> None:
        self._total = start

    def add(self, builder: Any, codes: Any, numbers: Any) -> None:
        words = self._total.type
        operands = ir.VectorType(_BYTE, 4 * words.count)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * words.count}"
        values = builder.bitcast(codes, operands), builder.bitcast(numbers, operands)
        self._total = _call(builder, name, words, self._total, *values)

    def total(self, builder: Any) -> Any:
        return self._total


class Avx2Instructions(DotInstructions):
    """vpmaddubsw and vpmaddwd, for 8 output features."""

    name, lanes, row_counts, feature = "AVX2", 8, (1, 2, 4), "avx2"

    def sum_from(self, start: Any, bits: int) -> Sum:
        # Two codes of 8 bits times two numbers may overflow 16 bits: the low and the high 4 bits are sums by themselves.
        return _Avx2Sum(start, bits) if bits < 8 else _SplitSum(_Avx2Sum(start, 4), _Avx2Sum(start.type(0), 4))


class _Avx2Sum(Sum):
    """Sums pairs in 16 bits as long as they are sure to fit."""

    def __init__(self, start: Any, bits: int) -> None:
        self._total = start
        self._pairs: Any | None = None
        self._most_pairs = (2**15 - 1) // (2 * ((1 << bits) - 1) * _LARGEST)
        self._num_pairs = 0

    def add(self, builder: Any, codes: Any, numbers: Any) -> None:
        lanes = self._total.type.count
        operands, pairs = ir.VectorType(_BYTE, 4 * lanes), ir.VectorType(_SHORT, 2 * lanes)
        values = builder.bitcast(codes, operands), builder.bitcast(numbers, operands)
        product = _call(builder, "llvm.x86.avx2.pmadd.ub.sw", pairs, *values)
        if self._num_pairs == self._most_pairs:
            self._total, self._pairs = self.total(builder), None
        self._num_pairs = 1 if self._pairs is None else self._num_pairs + 1
        self._pairs = product if self._pairs is None else builder.add(self._pairs, product)

    def total(self, builder: Any) -> Any:
        if self._pairs is None:
            return self._total
        ones = self._pairs.type([1] * self._pairs.type.count)
        wide = _call(builder, "llvm.x86.avx2.pmadd.wd", self._total.type, self._pairs, ones)
        return builder.add(self._total, wide)


class _SplitSum(Sum):
    """Sums the low and the high 4 bits of codes separately."""

    def __init__(self, low: Sum, high: Sum) -> None:
        self._low, self._high = low, high

    def add(self, builder: Any, codes: Any, numbers: Any) -> None:
        low_bits, shift = _all(codes.type, 0x0F0F0F0F), _all(codes.type, 4)
        self._low.add(builder, builder.and_(codes, low_bits), numbers)
        self._high.add(builder, builder.and_(builder.lshr(codes, shift), low_bits), numbers)

    def total(self, builder: Any) -> Any:
        high = self._high.total(builder)
        return builder.add(self._low.total(builder), builder.shl(high, _all(high.type, 4)))


class PlainInstructions(DotInstructions):
    """Products and sums that every processor has."""

    name, lanes, row_counts, feature = "no dot products (much slower than AVX2)", 8, (1, 2), ""

    @property
    def is_available(self) -> bool:
        return True

    def sum_from(self, start: Any, bits: int) -> Sum:
        return _PlainSum(start)


class _PlainSum(Sum):
    def __init__(self, start: Any) -> None:
        self._total = start

    def add(self, builder: Any, codes: Any, numbers: Any) -> None:
        words = codes.type
        for byte in range(4):
            code = builder.and_(builder.lshr(codes, _all(words, 8 * byte)), _all(words, 255))
            left = builder.shl(numbers, _all(words, 24 - 8 * byte))
            self._total = builder.add(self._total, builder.mul(code, builder.ashr(left, _all(words, 24))))

    def total(self, builder: Any) -> Any:
        return self._total


def _all(words: ir.VectorType, number: int) -> Any:
    return words([number] * words.count)


def _call(builder: Any, name: str, result: Any, *operands: Any) -> Any:
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)


# The fastest first.
INSTRUCTIONS: tuple[DotInstructions, ...] = (
    VnniInstructions("AVX512-VNNI", 16, (1, 2, 3, 4, 6, 8), "avx512vnni"),
    VnniInstructions("AVX-VNNI", 8, (1, 2, 4), "avxvnni"),
    Avx2Instructions(),
    PlainInstructions(),
)
DOT = next(each for each in INSTRUCTIONS if each.is_available)
