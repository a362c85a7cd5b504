"""Elementwise functions of torch whose results do not depend on where an element lies.

torch computes whole vectors by one polynomial and what is left by another, and shares large tensors among its threads
at any element. So an element's bits would depend on the other rows of its forward pass. Here such a function gets a flat
tensor of so many elements that each thread's share is a number of whole vectors.
"""

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# torch takes two vectors at a time: 64 elements of bfloat16 with AVX512, fewer of float32 or with AVX2.
VECTORS = 64
# Elements that torch gives to one more thread (at::internal::GRAIN_SIZE). GELU alone always takes all threads.
GRAIN = 1 << 15


def num_shares(num_elements: int) -> int:
    """Returns among how many threads torch shares an elementwise function."""
    return min(torch.get_num_threads(), -(-num_elements // GRAIN))


def padded(num_elements: int) -> int:
    """Returns the number of elements, at least `num_elements`, whose shares are whole vectors."""
    shares, found = 0, num_elements
    while (more := num_shares(found)) > shares:
        shares = more
        unit = VECTORS * math.lcm(shares, torch.get_num_threads())
        found = -(-num_elements // unit) * unit
    return found


class WholeVectors(TorchFunctionMode):
    """Within it, `functions` get whole vectors only."""

    def __init__(self, functions: set[Any]) -> None:
        super().__init__()
        self._functions = functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return (_in_whole_vectors if func in self._functions else _call)(func, args, kwargs)


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _in_whole_vectors(func: Any, args: Any, kwargs: Any) -> Any:
    shape = torch.broadcast_shapes(*(each.shape for each in (*args, *kwargs.values()) if _is_tensor(each)))
    num_elements = math.prod(shape)

    def pad(given: Any) -> Any:
        if not _is_tensor(given):
            return given
        flat = given.new_zeros(padded(num_elements))
        flat[:num_elements].view(shape).copy_(given)
        return flat

    found = func(*map(pad, args), **{name: pad(given) for name, given in kwargs.items()})
    return found[:num_elements].view(shape)


def _is_tensor(given: Any) -> bool:
    return isinstance(given, torch.Tensor)


class Recorder(TorchFunctionMode):
    """Finds the functions that a model calls and whose results depend on where an element lies."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[Any] = set()
        # Numbers of elements of all elementwise results.
        self.sizes: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _Operations(self.sizes) as operations:
            result = func(*args, **(kwargs or {}))
        if operations.any_depends:
            self.functions.add(func)
        return result


class _Operations(TorchDispatchMode):
    """Tries the elementwise operations of one function."""

    def __init__(self, sizes: set[int]) -> None:
        super().__init__()
        self._sizes, self.any_depends = sizes, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_known = torch.Tag.pointwise in func.tags and not func._schema.is_mutable
        if is_known and _is_tensor(result) and result.is_floating_point():
            self._sizes.add(result.numel())
            tensors = tuple((index, each.dtype) for index, each in enumerate(args) if _is_tensor(each))
            if all(dtype.is_floating_point for _, dtype in tensors):
                others = tuple(each for each in args if not _is_tensor(each))
                self.any_depends |= _depends_on_place(func, tensors, others, tuple((kwargs or {}).items()))
        return result


@cache
def _depends_on_place(
    func: Callable[..., torch.Tensor], tensors: tuple[tuple[int, torch.dtype], ...], others: tuple[Any, ...],
    named: tuple[tuple[str, Any], ...],
) -> bool:  # fmt: skip
    """Compares whole vectors with single elements, which torch also takes one by one if they do not lie side by side.

    tensors: their places among the arguments; others: what stands between them.
    """
    generator = torch.Generator().manual_seed(0)
    values = 16 * torch.rand((len(tensors), GRAIN // 4), generator=generator) - 8

    def run(stride: int) -> torch.Tensor:
        left, given = iter(others), []
        for index in range(len(tensors) + len(others)):
            place = next((rank for rank, (at, _) in enumerate(tensors) if at == index), None)
            if place is None:
                given.append(next(left))
            else:
                spread = torch.zeros(values.shape[1] * stride, dtype=tensors[place][1])[::stride]
                given.append(spread.copy_(values[place]))
        return func(*given, **dict(named)).nan_to_num()

    return not torch.equal(run(1), run(2))


def shared_counts(widths: Iterable[int], most: int) -> list[int]:
    """Returns numbers of rows, up to `most`: for each width the first at which torch's threads part within a vector."""
    found = set()
    for width in widths:
        for num_rows in range(-(-GRAIN // width), most + 1):
            shares = num_shares(num_rows * width)
            if shares > 1 and -(-num_rows * width // shares) % VECTORS:
                found.add(num_rows)
                break
    return sorted(found)
