"""Every exception Paceline raises on purpose.

    PacelineError
    ├── ConfigError                 a setting, file or model that can't work; ends the process
    ├── RequestError                somebody's request is at fault, or can't be served now
    │   ├── InvalidArgument         a field is outside its range: names the field and the range
    │   ├── Unauthenticated         no API key, or one that the server does not know
    │   ├── NotFound                unknown sequence or session
    │   ├── PositionMismatch        a command's position is not the cache's length: both numbers
    │   ├── OutOfRange              a length or position outside what there is
    │   ├── Aborted                 an earlier command of the sequence failed
    │   ├── Cancelled               dropped by a Release, a Truncate or the end of its stream
    │   ├── ResourceExhausted       no room now; try again later
    │   ├── PermissionDenied        the caller is known, and may not do this
    │   └── InternalError           a fault of ours in this request: repeated, it would fail again
    ├── DeviceLost                  a GPU that fails every later call; ends the process
    └── Unavailable                 a server is not there, went away, or makes no progress

Only `paceline.rpc.status` knows their gRPC codes. Imports nothing of ours.
"""


class PacelineError(Exception):
    """Root of all exceptions raised on purpose; its text is one line for a person."""


class ConfigError(PacelineError):
    """A setting, file or model that can't work."""


class RequestError(PacelineError):
    """A request that can't be served as it is, or not now."""


class InvalidArgument(RequestError):
    """A field outside its range."""

    @classmethod
    def field(cls, name: str, value: object, allowed: str) -> "InvalidArgument":
        """An error that names the field, what it holds and what it may hold."""
        # A text may have millions of characters.
        shown = repr(value[:80] if isinstance(value, str) else value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return cls(f"{name} is {shown}; it must be {allowed}")


class Unauthenticated(RequestError):
    """A call without an API key, or with one that the server does not know."""


class NotFound(RequestError):
    """An unknown sequence or session."""


class PositionMismatch(RequestError):
    """A command whose position is not the length of its sequence's cache."""

    def __init__(self, position: int, cache_length: int) -> None:
        super().__init__(f"position is {position}, but the cache holds {cache_length} tokens")
        self.cache_length = cache_length


class OutOfRange(RequestError):
    """A length or position outside what there is."""


class Aborted(RequestError):
    """An earlier command of the same sequence failed."""


class Cancelled(RequestError):
    """Dropped by a Release, a Truncate or the end of its stream."""


class ResourceExhausted(RequestError):
    """No room now; the same request may succeed later, after about `retry_after_s` seconds where that is known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PermissionDenied(RequestError):
    """A call that its caller may not make."""


class InternalError(RequestError):
    """A fault of a server in this request. Nobody repeats it: it would fail again."""


class DeviceLost(PacelineError):
    """A device that fails every later call of this process."""


class Unavailable(PacelineError):
    """A server is not there, went away, or makes no progress."""
