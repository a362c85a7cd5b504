"""What a gRPC connection carries, read from its bytes: HTTP/2 frames (RFC 9113), and in them the messages of a Session.

Headers stay packed. A Session is known all the same: of the calls between a coordinator and a model server it alone has a
client's side that stays open while the server answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
DATA, HEADERS = 0, 1
END_STREAM, PADDED = 1, 8
# A flag for compression and the length (gRPC over HTTP/2).
PREFIX_BYTES = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, as it came."""

    data: bytes

    @property
    def kind(self) -> int:
        return self.data[3]

    @property
    def stream(self) -> int:
        return int.from_bytes(self.data[5:HEADER_BYTES], "big") & 0x7FFFFFFF

    @property
    def ends_stream(self) -> bool:
        return self.kind in (DATA, HEADERS) and bool(self.data[4] & END_STREAM)

    @property
    def payload(self) -> bytes:
        """Of a DATA frame."""
        body = self.data[HEADER_BYTES:]
        return body[1 : len(body) - body[0]] if self.data[4] & PADDED else body


def data_frame(stream: int, message: bytes) -> bytes:
    """A frame with one message."""
    payload = b"\0" + len(message).to_bytes(PREFIX_BYTES - 1, "big") + message
    return len(payload).to_bytes(3, "big") + bytes([DATA, 0]) + stream.to_bytes(4, "big") + payload


class FrameReader:
    """Cuts one direction's bytes into frames. `begins_with`: bytes that come before the first, and pass as they are."""

    def __init__(self, begins_with: bytes = b"") -> None:
        self._num_before = len(begins_with)
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes | Frame]:
        self._bytes += data
        if self._num_before:
            before = self._take(min(self._num_before, len(self._bytes)))
            self._num_before -= len(before)
            yield before
        while len(self._bytes) >= HEADER_BYTES:
            size = HEADER_BYTES + int.from_bytes(self._bytes[:3], "big")
            if len(self._bytes) < size:
                return
            yield Frame(self._take(size))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken


class MessageReader:
    """Joins one stream's DATA frames to messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether the next frame begins with a message."""
        return not self._bytes

    def feed(self, payload: bytes) -> list[bytes]:
        self._bytes += payload
        messages = []
        while len(self._bytes) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(self._bytes[1:PREFIX_BYTES], "big")
            if len(self._bytes) < end:
                break
            messages.append(bytes(self._bytes[PREFIX_BYTES:end]))
            del self._bytes[:end]
        return messages
