"""Units of packed weights -> one code in each byte, and scales and offsets as float32 (see `formats`).

Written as LLVM code: 64 codes at once, whatever the processor's vectors are.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantised.formats import (
    FORMATS,
    GROUP_CODES,
    HALF_BYTES,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    Format,
)
from paceline.engine.cpu.kernels.quantised.writing import (
    BYTE,
    INDEX,
    VOID,
    WORD,
    WORD_BYTES,
    Place,
    Strided,
    Writer,
    indexed_code,
)
from paceline.engine.cpu.kernels.scalars import compiled
from paceline.engine.cpu.kernels.tiles import LANES, WIDTH

# Weights are fetched this far ahead: see `tiles`.
_AHEAD_BYTES = 8192
_LINE_BYTES = 64
_BYTES = ir.VectorType(BYTE, _LINE_BYTES)
_HALVES, _SMALL = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(BYTE, LANES)
_LOW_BYTES = GROUP_CODES // 2
_ROW_BYTES = WIDTH * WORD_BYTES
# The code of weight 0 in formats that have no offsets.
_ZEROS = {Q4_0: 8.0, Q5_0: 16.0, Q6_K: 32.0, Q8_0: 128.0}


class _UnitWriter(Writer):
    """Writes the code that unpacks units of one format."""

    def __init__(self, builder: Any, fmt: Format) -> None:
        super().__init__(builder, LANES)
        self._format = fmt

    def write(self, packed: Any, codes: Place, scales: Place, offsets: Place) -> None:
        """Unpacks the unit at the address `packed`."""
        number = self._format.number
        header = Place(packed, INDEX(0))
        for lane in range(0, WIDTH, LANES):
            if number == Q6_K:
                self._write_half_scales(header, lane, scales, offsets)
            elif number in (Q4_K, Q5_K):
                self._write_common_scales(header, lane, scales, offsets)
            else:
                self._write_own_scales(header, lane, scales, offsets)
        self._fetch(header, self._format.header_bytes)
        for group in range(self._format.unit_groups):
            start = self._format.header_bytes + group * self._format.group_bytes
            of_group = Place(cgutils.pointer_add(self.builder, packed, INDEX(start)), INDEX(0))
            out = Place(cgutils.pointer_add(self.builder, codes.start, INDEX(group * GROUP_CODES)), INDEX(0))
            self._write_codes(of_group, out)

    def _write_codes(self, packed: Place, codes: Place) -> None:
        """A group's bytes -> [GROUP_CODES] codes."""
        builder, more = self.builder, self._format.bits - 4
        self._fetch(packed, self._format.group_bytes)
        if self._format.bits == 8:
            for place in range(0, GROUP_CODES, _LINE_BYTES):
                self.store(self.load(packed, 0, INDEX(place), _BYTES), codes, 0, INDEX(place))
            return
        for place in range(0, _LOW_BYTES, _LINE_BYTES):
            both = self.load(packed, 0, INDEX(place), _BYTES)
            low = builder.and_(both, _all(15))
            high = builder.and_(builder.lshr(both, _all(4)), _all(15))
            for code, at in ((low, place), (high, _LOW_BYTES + place)):
                whole = builder.or_(code, self._bits_above(packed, at, more)) if more else code
                self.store(whole, codes, 0, INDEX(at))

    def _bits_above(self, packed: Place, at: int, more: int) -> Any:
        """The bits above the low four of the codes from `at` on, in their place. A byte has those of several codes."""
        builder, num_bytes = self.builder, GROUP_CODES * more // 8
        loaded = self.load(packed, 0, INDEX(_LOW_BYTES + at % num_bytes), _BYTES)
        shifted = builder.lshr(loaded, _all(at // num_bytes * more))
        return builder.shl(builder.and_(shifted, _all((1 << more) - 1)), _all(4))

    def _write_own_scales(self, header: Place, lane: int, scales: Place, offsets: Place) -> None:
        """For a unit of one group."""
        scale = self._halves(header, 2 * lane)
        zero = _ZEROS.get(self._format.number)
        offset = self._halves(header, HALF_BYTES + 2 * lane) if zero is None else self._times(scale, -zero)
        self.store(scale, scales, 0, INDEX(WORD_BYTES * lane))
        self.store(offset, offsets, 0, INDEX(WORD_BYTES * lane))

    def _write_common_scales(self, header: Place, lane: int, scales: Place, offsets: Place) -> None:
        """For Q4_K and Q5_K: the unit's two numbers times those of each group."""
        scale, offset = self._halves(header, 2 * lane), self._halves(header, HALF_BYTES + 2 * lane)
        offset = self.builder.fneg(offset)
        for group in range(8):
            at, place = INDEX(group * _ROW_BYTES + WORD_BYTES * lane), 2 * HALF_BYTES + group * WIDTH + lane
            self.store(self.builder.fmul(scale, self._small(header, place, False)), scales, 0, at)
            self.store(self.builder.fmul(offset, self._small(header, place + 8 * WIDTH, False)), offsets, 0, at)

    def _write_half_scales(self, header: Place, lane: int, scales: Place, offsets: Place) -> None:
        """For Q6_K: a scale for each 16 features."""
        common = self._halves(header, 2 * lane)
        for part in range(16):
            at = INDEX(part * _ROW_BYTES + WORD_BYTES * lane)
            scale = self.builder.fmul(common, self._small(header, HALF_BYTES + part * WIDTH + lane, True))
            self.store(scale, scales, 0, at)
            self.store(self._times(scale, -_ZEROS[Q6_K]), offsets, 0, at)

    def _halves(self, place: Place, offset_bytes: int) -> Any:
        """LANES float16 as float32."""
        return self.builder.fpext(self.load(place, 0, INDEX(offset_bytes), _HALVES), self.floats)

    def _small(self, place: Place, offset_bytes: int, is_signed: bool) -> Any:
        """LANES whole numbers of 8 bits as float32."""
        loaded = self.load(place, 0, INDEX(offset_bytes), _SMALL)
        wide = self.builder.sext(loaded, self.words) if is_signed else self.builder.zext(loaded, self.words)
        return self.builder.sitofp(wide, self.floats)

    def _times(self, value: Any, factor: float) -> Any:
        return self.builder.fmul(value, self.floats([factor] * LANES))

    def _fetch(self, place: Place, num_bytes: int) -> None:
        """Asks for the bytes that come _AHEAD_BYTES later. An address behind the last weight does no harm."""
        for line in range(0, num_bytes, _LINE_BYTES):
            address = self.address(place, 0, INDEX(_AHEAD_BYTES + line), BYTE)
            # To read, into the first cache, data.
            self.call("llvm.prefetch.p0", VOID, address, WORD(0), WORD(3), WORD(1))


def _all(byte: int) -> Any:
    return _BYTES([byte] * _LINE_BYTES)


def _unpack_intrinsic(fmt: Format) -> Callable[..., None]:
    def write(builder: Any, count: int, indices: Any, codes: Strided, scales: Strided, offsets: Strided) -> None:
        address, num_units = indices
        start = builder.inttoptr(address, BYTE.as_pointer())
        with cgutils.for_range(builder, num_units) as loop:
            packed = cgutils.pointer_add(builder, start, builder.mul(loop.index, INDEX(fmt.unit_bytes)))
            group = builder.mul(loop.index, INDEX(fmt.unit_groups))
            # A unit of Q6_K is a whole chunk: its scales begin at row 0, too.
            places = (array.at(group, INDEX(0)) for array in (codes, scales, offsets))
            _UnitWriter(builder, fmt).write(packed, *places)

    def type_unpack(
        typing_context: Any, count: Any, address: Any, num_units: Any, codes: Any, scales: Any, offsets: Any
    ) -> Any:
        return indexed_code(write, 1, 2, codes, scales, offsets)

    made: Callable[..., None] = intrinsic(type_unpack)
    return made


_unpack_q4_0, _unpack_q4_1, _unpack_q5_0, _unpack_q5_1 = map(_unpack_intrinsic, FORMATS[:4])
_unpack_q8_0, _unpack_q4_k, _unpack_q5_k, _unpack_q6_k = map(_unpack_intrinsic, FORMATS[4:])


@compiled()
def unpack(number: int, address: int, num_units: int, codes: Array, scales: Array, offsets: Array) -> None:
    """Unpacks units of a tile, at most a chunk, from an address on, of the format with this number.

    codes: [CHUNK_GROUPS, GROUP_CODES] uint8; scales and offsets: [groups of one scale, WIDTH] float32.
    """
    if number == Q4_0:
        _unpack_q4_0(1, address, num_units, codes, scales, offsets)
    elif number == Q4_1:
        _unpack_q4_1(1, address, num_units, codes, scales, offsets)
    elif number == Q5_0:
        _unpack_q5_0(1, address, num_units, codes, scales, offsets)
    elif number == Q5_1:
        _unpack_q5_1(1, address, num_units, codes, scales, offsets)
    elif number == Q8_0:
        _unpack_q8_0(1, address, num_units, codes, scales, offsets)
    elif number == Q4_K:
        _unpack_q4_k(1, address, num_units, codes, scales, offsets)
    elif number == Q5_K:
        _unpack_q5_k(1, address, num_units, codes, scales, offsets)
    else:
        _unpack_q6_k(1, address, num_units, codes, scales, offsets)
