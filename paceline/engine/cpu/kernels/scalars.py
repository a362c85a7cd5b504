"""Scalars in kernels: bfloat16 as its 16 bits, a fast exponential, and how kernels are compiled."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.core import cgutils, errors
from numba.extending import intrinsic, overload

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernel_cache import keep

# A product and a sum may become one operation. Sums keep their order, so that kernels are batch invariant.
IN_ORDER = {"contract"}
# The compiler may also reorder a sum within one row, to use vector instructions: the order is the same for all rows.
IN_LANES = {"contract", "reassoc", "nsz"}

LOG2_E = np.float32(1.4426950408889634)
# ln 2 = LN2_HIGH + LN2_LOW, with more digits than one float32 has.
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
# Adding and then subtracting this number rounds to a whole number.
ROUNDER = np.float32(1.5 * 2**23)
LOWEST = np.float32(-87.0)
ONE = np.float32(1.0)
# Coefficients of a polynomial for (e^x - 1 - x) / x^2 on [-ln(2)/2, ln(2)/2] (Cephes, expf).
E0, E1, E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E3, E4, E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


def compiled(order: set[str] = IN_ORDER, parallel: bool = False, inline: bool = False) -> Callable[[Any], Any]:
    """Compiles a function at its first call, and keeps the result on disk."""
    decorate: Callable[[Any], Any] = njit(
        nogil=True,
        error_model="numpy",
        fastmath=order,
        parallel=parallel,
        inline="always" if inline else "never",
    )
    # What is inlined is part of other kernels.
    return decorate if inline else lambda function: keep(decorate(function))


def address_of(kernel: Any, *kinds: Any) -> int:
    """Compiles a kernel for arguments of these Numba types, and returns its address for `call_at`.

    Numba compiles a kernel again into all of its callers, but only once if called by address.
    """
    kernel.compile(kinds)
    done = kernel.overloads[kinds]
    address: int = done.library.get_pointer_to_function(done.fndesc.llvm_func_name)
    return address


def _type_call_at(typing_context: Any, kernel: Any, address: Any, arguments: Any) -> Any:
    kinds = tuple(map(types.unliteral, arguments))
    known = {
        tuple(map(types.unliteral, each)): done.signature.return_type
        for each, done in kernel.dispatcher.overloads.items()
    }
    if kinds not in known:
        raise errors.TypingError(f"{kernel} has no address for {kinds}")
    result = known[kinds]

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        convention = context.call_conv
        pointer = builder.inttoptr(args[1], convention.get_function_type(result, kinds).as_pointer())
        values = cgutils.unpack_tuple(builder, args[2])
        status, returned = convention.call_function(builder, pointer, result, kinds, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return returned

    return result(kernel, address, arguments), generate


# (kernel, address, arguments): calls the kernel by its `address_of` the types of these arguments, a tuple.
call_at: Callable[..., Any] = intrinsic(_type_call_at)


# What `bits_of` makes of a tensor's elements.
ELEMENTS = {torch.float32: np.float32, torch.bfloat16: np.uint16}


def bits_of(tensor: torch.Tensor) -> Array:
    """Views a tensor as the array that kernels take: float32, or bfloat16 as uint16."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()


def tensor_of(array: Array) -> torch.Tensor:
    """Inverts `bits_of`."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def pad_rows(x: Array, num_rows: int) -> Array:
    """Pads x: [at most num_rows, width] with zeros to [num_rows, width]."""
    if x.shape[0] == num_rows:
        return x
    padded = np.zeros((num_rows, x.shape[1]), x.dtype)
    padded[: x.shape[0]] = x
    return padded


# `widen` and `put` each have one form for bfloat16 and one for float32. The element's type selects the form. Numba
# requires equal argument names in both forms.


def _from_bfloat16(value: Any) -> Any:
    return np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)


def _from_float32(value: Any) -> Any:
    return value


def widen(value: Any) -> Any:
    """Converts an array's element to float32."""
    return (_from_bfloat16 if isinstance(value, np.uint16) else _from_float32)(value)


@overload(widen, inline="always")
def _widen(value: Any) -> Callable[[Any], Any]:
    return _from_bfloat16 if value == types.uint16 else _from_float32


def _put_bfloat16(array: Any, index: Any, value: Any) -> None:
    bits = np.float32(value).view(np.uint32)
    array[index] = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


def _put_float32(array: Any, index: Any, value: Any) -> None:
    array[index] = value


def put(array: Any, index: Any, value: Any) -> None:
    """Sets array[index] to a float32, rounded to nearest even if the array is bfloat16."""
    (_put_bfloat16 if array.dtype == np.uint16 else _put_float32)(array, index, value)


@overload(put, inline="always")
def _put(array: Any, index: Any, value: Any) -> Callable[[Any, Any, Any], None]:
    return _put_bfloat16 if array.dtype == types.uint16 else _put_float32


@compiled()
def exp_of_negative(x: Any) -> Any:
    """Computes e^x for x <= 0 as float32, with a relative error of 1e-7; e^-87 below -87."""
    x = x if x > LOWEST else LOWEST
    power = (x * LOG2_E + ROUNDER) - ROUNDER
    rest = x - power * LN2_HIGH
    rest = rest - power * LN2_LOW
    series = E0 * rest + E1
    series = series * rest + E2
    series = series * rest + E3
    series = series * rest + E4
    series = series * rest + E5
    scale = np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (series * rest * rest + rest + ONE) * scale
