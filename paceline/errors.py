"""Every exception that Paceline raises on purpose.

    PacelineError
    ├── ConfigError                 a setting, file or model that can't work; ends the process
    ├── RequestError                a request that can't be served, or not now
    │   ├── InvalidArgument         a field is outside its range
    │   ├── Unauthenticated         no API key, or an unknown one
    │   ├── NotFound                unknown sequence or session
    │   ├── PositionMismatch        a command's position is not the cache's length
    │   ├── OutOfRange              a length or position out of range
    │   ├── Aborted                 an earlier command of the sequence failed
    │   ├── Cancelled               dropped by a Release, a Truncate or the end of its stream
    │   ├── ResourceExhausted       no capacity now; try again later
    │   ├── PermissionDenied        the caller may not do this
    │   ├── FatalRequest            servers died while they worked on the request; it is not tried again
    │   └── InternalError           a server fault; a retry would fail again
    ├── DeviceLost                  a GPU that fails every later call; ends the process
    └── Unavailable                 a server is away or makes no progress
        └── Unreachable             no connection to a server
            └── ConnectionLost      the connection broke, or the server fell silent, during a call

Programs read an error's class and attributes; the text is one line for people. `paceline.rpc.status` puts both on the
wire. This module imports nothing of ours.
"""

import reprlib
from dataclasses import dataclass
from itertools import islice
from typing import Any

# Reasons, as `google.rpc.ErrorInfo` carries them, of errors that programs handle apart from others of their class.
INVALID_FIELD = "INVALID_FIELD"
CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"

_MAX_SHOWN_CHARACTERS = 80
_MAX_FIELD_CHARACTERS = 200


class _Beginning(reprlib.Repr):
    """Writes the beginning of a value, without looking at the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        # Each with a comma and a space.
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = _MAX_SHOWN_CHARACTERS // 3
        self.maxlong = self.maxother = 2 * _MAX_SHOWN_CHARACTERS

    def repr_str(self, value: str, level: int) -> str:
        return repr(value[:_MAX_SHOWN_CHARACTERS])

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        """In the order of the keys, unlike the base class."""
        if level <= 0:
            return "{...}"
        pairs = (f"{self.repr1(key, level - 1)}: {self.repr1(each, level - 1)}" for key, each in value.items())
        return "{" + ", ".join(islice(pairs, self.maxdict)) + "}"


def shown(value: object) -> str:
    """Returns the beginning of a value's repr. The value may have millions of parts."""
    text = _Beginning().repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."


class PacelineError(Exception):
    pass


class ConfigError(PacelineError):
    pass


class RequestError(PacelineError):
    pass


@dataclass(frozen=True, slots=True)
class Excess:
    """How many there are of something, and how many there may be."""

    count: int
    limit: int
    unit: str


class InvalidArgument(RequestError):
    """A field outside its range.

    field: its name, as the caller wrote it; empty if several fields conflict.
    problem: what is wrong; follows the field's name in the text.
    allowed: the allowed range, if the value is wrong.
    reason: INVALID_FIELD, or one that programs handle separately.
    excess: set if there is too much of something.
    """

    def __init__(
        self,
        field: str,
        problem: str,
        *,
        allowed: str = "",
        reason: str = INVALID_FIELD,
        excess: Excess | None = None,
    ) -> None:
        # A client's own key may be part of it.
        field = field[:_MAX_FIELD_CHARACTERS]
        super().__init__(f"{field} {problem}".lstrip())
        self.field, self.problem, self.allowed, self.reason, self.excess = field, problem, allowed, reason, excess

    @classmethod
    def of_count(cls, field: str, excess: Excess, reason: str = INVALID_FIELD) -> "InvalidArgument":
        allowed = f"at most {excess.limit} {excess.unit}"
        problem = f"is '{excess.count} {excess.unit}'; it must be {allowed}"
        return cls(field, problem, allowed=allowed, reason=reason, excess=excess)

    @classmethod
    def of_value(cls, field: str, value: object, allowed: str, reason: str = INVALID_FIELD) -> "InvalidArgument":
        return cls(field, f"is {shown(value)}; it must be {allowed}", allowed=allowed, reason=reason)

    def renamed(self, field: str) -> "InvalidArgument":
        """Returns the same error for a caller that knows the field by another name."""
        return InvalidArgument(field, self.problem, allowed=self.allowed, reason=self.reason, excess=self.excess)


class Unauthenticated(RequestError):
    pass


class NotFound(RequestError):
    pass


class PositionMismatch(RequestError):
    pass


class OutOfRange(RequestError):
    pass


class Aborted(RequestError):
    pass


class Cancelled(RequestError):
    pass


class ResourceExhausted(RequestError):
    """No capacity now; may succeed after about `retry_after_s` seconds, if known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PermissionDenied(RequestError):
    pass


class FatalRequest(RequestError):
    pass


class InternalError(RequestError):
    pass


class DeviceLost(PacelineError):
    pass


class Unavailable(PacelineError):
    pass


class Unreachable(Unavailable):
    def __init__(self, address: str, said: str) -> None:
        super().__init__(f"can't reach {address}: {said}")
        self.address = address


class ConnectionLost(Unreachable):
    """`was_accepted`: whether the server had read the request."""

    def __init__(self, address: str, said: str, was_accepted: bool = False) -> None:
        super().__init__(address, said)
        self.was_accepted = was_accepted
