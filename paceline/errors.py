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
    │   └── InternalError           a server fault; a retry would fail again
    ├── DeviceLost                  a GPU that fails every later call; ends the process
    └── Unavailable                 a server is away or makes no progress
        └── Unreachable             no connection to a server, or the connection broke

Programs read an error's class and attributes; the text is one line for people. `paceline.rpc.status` puts both on the
wire. This module imports nothing of ours.
"""

from dataclasses import dataclass

# Reasons, as `google.rpc.ErrorInfo` carries them, of errors that programs handle apart from others of their class.
INVALID_FIELD = "INVALID_FIELD"
CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"

_MAX_SHOWN_CHARACTERS = 80


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
        super().__init__(f"{field} {problem}".lstrip())
        self.field, self.problem, self.allowed, self.reason, self.excess = field, problem, allowed, reason, excess

    @classmethod
    def of_count(cls, field: str, excess: Excess, reason: str = INVALID_FIELD) -> "InvalidArgument":
        allowed = f"at most {excess.limit} {excess.unit}"
        problem = f"is '{excess.count} {excess.unit}'; it must be {allowed}"
        return cls(field, problem, allowed=allowed, reason=reason, excess=excess)

    @classmethod
    def of_value(cls, field: str, value: object, allowed: str, reason: str = INVALID_FIELD) -> "InvalidArgument":
        """Shortens `value`, which may have millions of characters."""
        shown = repr(value[:_MAX_SHOWN_CHARACTERS] if isinstance(value, str) else value)
        if len(shown) > _MAX_SHOWN_CHARACTERS:
            shown = shown[: _MAX_SHOWN_CHARACTERS - 3] + "..."
        return cls(field, f"is {shown}; it must be {allowed}", allowed=allowed, reason=reason)

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
