"""Every exception that Paceline raises on purpose.

    PacelineError
    ├── ConfigError                 a setting, file or model that can't work; ends the process
    ├── RequestError                a request that can't be served, or not now
    │   ├── InvalidArgument         a field is outside its range
    │   ├── Unauthenticated         no API key, or an unknown one
    │   ├── NotFound                unknown sequence or session
    │   ├── PositionMismatch        a command's position is not the cache's length
    │   ├── OutOfRange              a length or position outside what there is
    │   ├── Aborted                 an earlier command of the sequence failed
    │   ├── Cancelled               dropped by a Release, a Truncate or the end of its stream
    │   ├── ResourceExhausted       no capacity now; try again later
    │   ├── PermissionDenied        the caller may not do this
    │   └── InternalError           a fault of ours in this request; a retry would fail again
    ├── DeviceLost                  a GPU that fails every later call; ends the process
    └── Unavailable                 a server is not there, went away, or makes no progress
        └── Unreachable             no connection to a server, or the connection broke

What a program needs to know of an error is in its class and attributes; the text is one line for a person, and no code
reads it. `paceline.rpc.status` puts both on the wire. Imports nothing of ours.
"""

# Reasons, as `google.rpc.ErrorInfo` carries them, of errors that programs handle apart from others of their class.
INVALID_FIELD = "INVALID_FIELD"
CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"

_MAX_SHOWN_CHARACTERS = 80


class PacelineError(Exception):
    """Root of all exceptions raised on purpose; its text is one line for a person."""


class ConfigError(PacelineError):
    """A setting, file or model that can't work."""


class RequestError(PacelineError):
    """A request that can't be served as it is, or not now."""


class InvalidArgument(RequestError):
    """A field outside its range.

    field: its name, as the caller wrote it; empty if several are at fault together.
    problem: what is wrong with it; the text is the field's name and this.
    allowed: what it may hold, if the problem is the value.
    reason: INVALID_FIELD, or one that programs handle apart.
    """

    def __init__(self, field: str, problem: str, *, allowed: str = "", reason: str = INVALID_FIELD) -> None:
        super().__init__(f"{field} {problem}".lstrip())
        self.field, self.problem, self.allowed, self.reason = field, problem, allowed, reason

    @classmethod
    def of_value(cls, field: str, value: object, allowed: str, reason: str = INVALID_FIELD) -> "InvalidArgument":
        """Makes the error for a field that holds `value`, which may have millions of characters."""
        shown = repr(value[:_MAX_SHOWN_CHARACTERS] if isinstance(value, str) else value)
        if len(shown) > _MAX_SHOWN_CHARACTERS:
            shown = shown[: _MAX_SHOWN_CHARACTERS - 3] + "..."
        return cls(field, f"is {shown}; it must be {allowed}", allowed=allowed, reason=reason)

    def renamed(self, field: str) -> "InvalidArgument":
        """Returns the same error of a caller that calls the field otherwise."""
        return InvalidArgument(field, self.problem, allowed=self.allowed, reason=self.reason)


class Unauthenticated(RequestError):
    """A call without an API key, or with one that the server does not know."""


class NotFound(RequestError):
    """An unknown sequence or session."""


class PositionMismatch(RequestError):
    """A command whose position is not the length of its sequence's cache."""


class OutOfRange(RequestError):
    """A length or position outside what there is."""


class Aborted(RequestError):
    """An earlier command of the same sequence failed."""


class Cancelled(RequestError):
    """Dropped by a Release, a Truncate or the end of its stream."""


class ResourceExhausted(RequestError):
    """No capacity now; the request may succeed after about `retry_after_s` seconds, if that is known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PermissionDenied(RequestError):
    """A call that its caller may not make."""


class InternalError(RequestError):
    """A fault of a server in this request; a retry would fail again."""


class DeviceLost(PacelineError):
    """A device that fails every later call of this process."""


class Unavailable(PacelineError):
    """A server is not there, went away, or makes no progress."""


class Unreachable(Unavailable):
    """No connection to the server at `address`, or the connection broke."""

    def __init__(self, address: str, said: str) -> None:
        super().__init__(f"can't reach {address}: {said}")
        self.address = address
