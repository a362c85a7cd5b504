"""The processor's dot product of four codes with four numbers, and how many output features it takes at once.

All of them give the same whole numbers: no intermediate sum can overflow.
"""

from abc import ABC, abstractmethod
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from paceline.engine.cpu.kernels.processor import has_features

_BYTE, _SHORT, _WORD = ir.IntType(8), ir.IntType(16), ir.IntType(32)


class DotInstructions(ABC):
    """Instructions that add, in each lane, four codes times four numbers."""

    # What users know them by; output features of a vector; rows whose sums fit into registers; LLVM's name of the feature.
    name: str
    lanes: int
    most_rows: int
    feature: str

    @property
    def is_available(self) -> bool:
        return has_features(self.feature)

    @property
    def words(self) -> ir.VectorType:
        return ir.VectorType(_WORD, self.lanes)

    @abstractmethod
    def dot(self, builder: Any, weights: list[Any], numbers: list[list[Any]]) -> list[Any]:
        """Sums for each row: sum of weights[w] * numbers[row][w] over the words w of a group.

        weights: vectors of words of unsigned codes; numbers: vectors of words of signed numbers.
        """


class VnniInstructions(DotInstructions):
    """vpdpbusd: of AVX512-VNNI for 16 output features, of AVX-VNNI for 8."""

    def __init__(self, name: str, lanes: int, most_rows: int, feature: str) -> None:
        self.name, self.lanes, self.most_rows, self.feature = name, lanes, most_rows, feature

    def dot(self, builder: Any, weights: list[Any], numbers: list[list[Any]]) -> list[Any]:
        operands = ir.VectorType(_BYTE, 4 * self.lanes)
        kind = ir.FunctionType(self.words, [self.words, operands, operands])
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        sums = [self.words([0] * self.lanes)] * len(numbers)
        for index, codes in enumerate(weights):
            of_codes = builder.bitcast(codes, operands)
            sums = [
                builder.call(function, [total, of_codes, builder.bitcast(of_row[index], operands)])
                for total, of_row in zip(sums, numbers, strict=True)
            ]
        return sums


class Avx2Instructions(DotInstructions):
    """vpmaddubsw and vpmaddwd, for 8 output features.

    The first adds two products in 16 bits, and overflows for codes of 8 bits. So the low and the high 4 bits of a code
    are multiplied by themselves: 8 words of them add up to at most 8 * 2 * 15 * 127 = 30,480.
    """

    name, lanes, most_rows, feature = "AVX2", 8, 3, "avx2"

    def dot(self, builder: Any, weights: list[Any], numbers: list[list[Any]]) -> list[Any]:
        low_bits, shift = self.words([0x0F0F0F0F] * self.lanes), self.words([4] * self.lanes)
        lows = [builder.and_(codes, low_bits) for codes in weights]
        highs = [builder.and_(builder.lshr(codes, shift), low_bits) for codes in weights]
        sums = []
        for of_row in numbers:
            low, high = self._add(builder, lows, of_row), self._add(builder, highs, of_row)
            sums.append(builder.add(self._widen(builder, low, 1), self._widen(builder, high, 16)))
        return sums

    def _add(self, builder: Any, weights: list[Any], numbers: list[Any]) -> Any:
        codes, pairs = ir.VectorType(_BYTE, 4 * self.lanes), ir.VectorType(_SHORT, 2 * self.lanes)
        kind = ir.FunctionType(pairs, [codes, codes])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.ub.sw")
        total = None
        for weight, number in zip(weights, numbers, strict=True):
            product = builder.call(function, [builder.bitcast(weight, codes), builder.bitcast(number, codes)])
            total = product if total is None else builder.add(total, product)
        return total

    def _widen(self, builder: Any, pairs: Any, factor: int) -> Any:
        """factor * (first + second) of each pair."""
        kind = ir.FunctionType(self.words, [pairs.type, pairs.type])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
        return builder.call(function, [pairs, pairs.type([factor] * 2 * self.lanes)])


class PlainInstructions(DotInstructions):
    """Products and sums that every processor has."""

    name, lanes, most_rows, feature = "no dot products (much slower than AVX2)", 8, 2, ""

    @property
    def is_available(self) -> bool:
        return True

    def dot(self, builder: Any, weights: list[Any], numbers: list[list[Any]]) -> list[Any]:
        sums = []
        for of_row in numbers:
            total = self.words([0] * self.lanes)
            for codes, number in zip(weights, of_row, strict=True):
                for byte in range(4):
                    code = builder.and_(builder.lshr(codes, self.words([8 * byte] * self.lanes)), self._all(255))
                    left = builder.shl(number, self.words([24 - 8 * byte] * self.lanes))
                    total = builder.add(total, builder.mul(code, builder.ashr(left, self._all(24))))
            sums.append(total)
        return sums

    def _all(self, number: int) -> Any:
        return self.words([number] * self.lanes)


# The fastest first.
INSTRUCTIONS: tuple[DotInstructions, ...] = (
    VnniInstructions("AVX512-VNNI", 16, 12, "avx512vnni"),
    VnniInstructions("AVX-VNNI", 8, 4, "avxvnni"),
    Avx2Instructions(),
    PlainInstructions(),
)
DOT = next(each for each in INSTRUCTIONS if each.is_available)
