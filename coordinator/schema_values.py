"""Values of a JSON Schema's keywords, as the grammar library can keep to them."""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from typing import Any

from coordinator.patterns import UnsupportedPattern, read_pattern

# Of lengths and counts, as the library reads them.
MAX_COUNT = (1 << 31) - 1
# The largest double that its integers hold.
MAX_BOUND = float((1 << 63) - (1 << 10))
# Digits of a bound that the library distinguishes, before and after the decimal point, and the bound beyond which it needs
# another one.
BOUND_DIGITS, MAX_OPEN_BOUND = 12, 10**17
# Remainders that its automaton of a multiple can tell apart beside bounds.
MAX_REMAINDERS = 1 << 10
# A value that any number meets.
NO_LIMIT = object()


class Unable(Exception):
    """Why a value of a keyword can't be enforced."""


class Wrong(Exception):
    """Why a value can't be left out either."""


def lowest(value: Any, sign: int, is_excluded: bool) -> float:
    """Returns the lowest bound that excludes no less, if `value` is a minimum (`sign` 1), or a maximum (-1) times -1."""
    number = sign * Decimal(repr(_number(value)))
    if number > MAX_BOUND:
        raise Unable(f"{value} is beyond 64-bit integers")
    if number < -MAX_BOUND:
        return -MAX_BOUND
    unit = Decimal(10) ** min(max(number.adjusted(), 0) - BOUND_DIGITS, 0)
    exact = (number / unit).to_integral_value(ROUND_CEILING) * unit
    if is_excluded and exact == number:
        exact += unit
    bound = float(exact)
    # Of whole numbers, not all are doubles.
    return math.nextafter(bound, math.inf) if unit == 1 and bound < exact else bound


def has_no_multiple(schema: dict[str, Any]) -> bool:
    """Returns whether no multiple lies between bounds, which the library finds in the middle of an answer."""
    if not {"multipleOf", "minimum", "maximum"} <= schema.keys():
        return False
    step, low, high = (Fraction(repr(schema[each])) for each in ("multipleOf", "minimum", "maximum"))
    return math.ceil(low / step) * step > high


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(_double(value)):
        raise Unable("a number is expected")
    return value


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _count(value: Any) -> int:
    number = _number(value)
    if number < 0 or number != int(number):
        raise Unable("a whole number of at least 0 is expected")
    return int(number)


def _at_least(value: Any) -> int:
    if (count := _count(value)) > MAX_COUNT:
        raise Unable(f"{count} is more than {MAX_COUNT}")
    return count


def _at_most(value: Any) -> object:
    count = _count(value)
    return count if count <= MAX_COUNT else NO_LIMIT


def _multiple(value: Any) -> int | float:
    number = _number(value)
    if number <= 0:
        raise Unable("a number above 0 is expected")
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    if int("".join(map(str, digits))) * 10 ** min(max(exponent, 0), 10) > MAX_REMAINDERS or exponent < -9:
        raise Unable(f"{value} has too many digits")
    # The library multiplies doubles by 10 until they are whole, in 32 bits; 0.07 is not whole by then.
    shifted = float(number)
    while not shifted.is_integer():
        shifted *= 10
    if shifted >= 1 << 32:
        raise Unable(f"{value} has too many digits as a double")
    return int(number) if number == int(number) else number


def _constant(value: Any) -> Any:
    """Refuses numbers that the library, which reads doubles, would write otherwise."""
    values = [value]
    while values:
        each = values.pop()
        if isinstance(each, dict | list):
            values += each.values() if isinstance(each, dict) else each
        elif isinstance(each, int | float) and not isinstance(each, bool) and not is_written(each, 1 << 63):
            raise Wrong(f"{each} is no number that a double holds")
    return value


def is_written(number: float, most: int) -> bool:
    """Returns whether the library, which reads doubles and writes short digits from `most` on, writes the number exactly."""
    double = _double(number)
    return double == number and math.isfinite(double) and (abs(double) < most or Decimal(repr(double)) == number)


def short(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def _constants(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Unable("a list is expected")
    return [_constant(each) for each in value]


def _pattern(value: Any) -> str:
    try:
        return read_pattern(_text(value)).text
    except UnsupportedPattern as error:
        raise Unable(error) from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unable("a text is expected")
    return value


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Unable("a list of names is expected")
    return list(dict.fromkeys(value))


Check = Callable[[Any], Any]
# Each returns the value for the library, or NO_LIMIT.
CHECKS: dict[str, Check] = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), _at_least),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), _at_most),
    "multipleOf": _multiple, "const": _constant, "enum": _constants, "pattern": _pattern, "format": _text, "required": _names,
    "$ref": _text,
}  # fmt: skip
