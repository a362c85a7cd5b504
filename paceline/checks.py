"""Checks values from outside; an error names the field and its range."""

import copy
from numbers import Integral
from typing import Any, TypeVar

from paceline.errors import INVALID_FIELD, Excess, InvalidArgument

T = TypeVar("T")


def with_known(params: T, **known: Any) -> T:
    """Returns a copy of parameters with these values, which are known to be good.

    Unlike `dataclasses.replace` it does not check all other values again.
    """
    changed = copy.copy(params)
    for name, value in known.items():
        object.__setattr__(changed, name, value)
    return changed


def require(ok: bool, name: str, value: object, allowed: str, reason: str = INVALID_FIELD) -> None:
    if not ok:
        raise InvalidArgument.of_value(name, value, allowed, reason)


def require_at_most(most: int, count: int, name: str, unit: str, reason: str = INVALID_FIELD) -> None:
    # The texts are made only for an error: this runs several times for every command.
    if count > most:
        raise InvalidArgument.of_count(name, Excess(count, most, unit), reason)


def require_type(params: object, kind: type, allowed: str, *names: str) -> None:
    """Raises InvalidArgument naming the first field that is not a `kind`. A bool is not a number."""
    for name in names:
        value = getattr(params, name)
        require(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), name, value, allowed)


def is_token_id(value: object) -> bool:
    # The cheap test first: a list may hold thousands. A bool is not a number.
    is_whole = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    return is_whole and 0 <= int(value) < 2**31  # type: ignore[call-overload]
