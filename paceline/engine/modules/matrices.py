"""Matrices whose products the engine computes, in the place of transformers' weights."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn import functional

from paceline.errors import ConfigError


class Matrix(Protocol):
    """[out_features, in_features] on a device."""

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, in_features] -> [num_rows, out_features], with the bias if there is one."""
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [num_ids] -> [num_ids, in_features]."""
        ...


class MatrixWeight(torch.Tensor):
    """A weight without numbers: `linear` and `embedding` of it are its matrix's, and nothing else is allowed."""

    matrix: Matrix
    bias: torch.Tensor | None
    # Returns the same matrix in float32, in which some routers multiply.
    widen: "Callable[[], MatrixWeight] | None"

    @classmethod
    def of(
        cls, matrix: Matrix, like: torch.Tensor, bias: torch.Tensor | None,
        widen: "Callable[[], MatrixWeight] | None" = None,
    ) -> "MatrixWeight":  # fmt: skip
        """`like`: has the weight's shape and dtype; `bias`: what the matrix's products have."""
        made = torch.empty(1, dtype=like.dtype, device=like.device).expand(like.shape).as_subclass(cls)
        made.matrix, made.bias, made.widen = matrix, bias, widen
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (own := _OWN.get(func)) is not None:
            return own(*args, **kwargs)
        if func.__name__ == "__get__":
            return super().__torch_function__(func, types, args, kwargs)
        raise ConfigError(f"the model uses a weight in {func.__name__!r}; supported: linear, embedding")


def _linear(x: torch.Tensor, weight: MatrixWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    if bias is not weight.bias:
        raise ConfigError("the model adds a bias that is not its weight's")
    return weight.matrix.multiply(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], weight.shape[0])


def _embedding(ids: torch.Tensor, weight: MatrixWeight, *unused: Any, **names: Any) -> torch.Tensor:
    return weight.matrix.rows(ids.reshape(-1)).view(*ids.shape, -1)


def _converted(weight: MatrixWeight, *to: Any, **named: Any) -> MatrixWeight:
    given = (each for each in (*to, *named.values()) if isinstance(each, torch.dtype | torch.Tensor))
    # `to` also takes a tensor, for its dtype, or only a device.
    dtype = next((getattr(each, "dtype", each) for each in given), weight.dtype)
    if dtype == weight.dtype:
        return weight
    if weight.widen is None or dtype is not torch.float32:
        raise ConfigError(f"the model converts a weight to {dtype}; only routers may, to float32")
    return weight.widen()


_OWN: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    torch.Tensor.float: partial(_converted, dtype=torch.float32),
    torch.Tensor.to: _converted,
    torch.Tensor.type: _converted,
}
