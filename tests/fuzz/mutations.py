"""Changes to good messages: of a few fields, of a few bytes, and of the size."""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from tests.fuzz.values import fields_of, is_map, put, values

KIB, MIB = 1 << 10, 1 << 20
# A message may have 16 MiB.
SIZES = (64 * KIB, 300 * KIB, MIB, 4 * MIB, 16 * MIB - 64, 16 * MIB, 16 * MIB + 1, 17 * MIB)
# One message in so many is large.
LARGE_ONE_IN = 400
LENGTH_DELIMITED = 2
UNKNOWN_FIELD = 1000
NUMBER_OF_CHANGES = (0, 1, 1, 1, 1, 2, 2, 3)
# Varints that end nowhere, lengths that lead behind the end, groups that nobody closes, field 0.
STRANGE_BYTES = (
    b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\x00", b"\x0b" * 200, b"\x0c", b"\x0a\x00" * 30, b"\xed\xa0\x80",
    b"\xf8\xff\xff\xff\x0f\x01", b"\x7f",
)  # fmt: skip

DAMAGES = ("flip", "flip", "flip", "cut", "drop", "insert", "strange", "repeat", "length", "twice")
LENGTHS = (b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xff\x7f")


@st.composite
def changed(draw: st.DrawFn, good: Message) -> Message:
    """`good` with up to three fields gone or set to anything, on any level."""
    message = type(good)()
    message.CopyFrom(good)
    for _ in range(draw(st.sampled_from(NUMBER_OF_CHANGES))):
        _change(draw, message)
    return message


def _change(draw: st.DrawFn, message: Any) -> None:
    while message.DESCRIPTOR.fields:
        field = draw(fields_of(message.DESCRIPTOR))
        inner = _inner(draw, message, field)
        if inner is not None and draw(st.sampled_from((True, True, True, False))):
            message = inner
            continue
        if draw(st.sampled_from((True, False, False, False))):
            message.ClearField(field.name)
        else:
            put(message, field, draw(values(field)))
        return


def _inner(draw: st.DrawFn, message: Any, field: FieldDescriptor) -> Any:
    """A message inside that is set; None where there is none."""
    if field.message_type is None or is_map(field):
        return None
    if field.is_repeated:
        entries = getattr(message, field.name)
        return entries[draw(st.integers(0, len(entries) - 1))] if entries else None
    return getattr(message, field.name) if message.HasField(field.name) else None


@st.composite
def encoded(draw: st.DrawFn, message: Message, one_damaged_in: int = 6) -> bytes:
    """The message's bytes: mostly as they are, sometimes with some of them changed, rarely very many of them."""
    data = message.SerializeToString()
    if draw(st.integers(1, one_damaged_in)) == one_damaged_in:
        for _ in range(draw(st.integers(1, 3))):
            data = _damage(draw, data)
    if draw(st.integers(1, LARGE_ONE_IN)) == LARGE_ONE_IN:
        size = draw(st.sampled_from(SIZES))
        data += _filling(draw, message.DESCRIPTOR, max(0, size - len(data)))
    return data


def _damage(draw: st.DrawFn, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    end = min(len(data), at + draw(st.integers(1, 12)))
    match draw(st.sampled_from(DAMAGES)):
        case "flip" if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "drop":
            return data[:at] + data[end:]
        case "insert":
            return data[:at] + draw(st.binary(min_size=1, max_size=12)) + data[at:]
        case "strange":
            return data[:at] + draw(st.sampled_from(STRANGE_BYTES)) + data[at:]
        case "repeat":
            return data[:end] + data[at:]
        case "length" if at < len(data):
            return data[:at] + draw(st.sampled_from(LENGTHS)) + data[at + 1 :]
        case _:
            return data + data


def _filling(draw: st.DrawFn, descriptor: Descriptor, size: int) -> bytes:
    """So many bytes to append to a message: a long text or list at any depth, empty messages, or an unknown field.

    Fields that come twice are merged, so the message in front stays what it was.
    """
    path = []
    while fields := [field for field in descriptor.fields if _is_length_delimited(field)]:
        path.append(draw(st.sampled_from(fields)))
        if path[-1].message_type is None or draw(st.sampled_from((True, False, False))):
            break
        descriptor = path[-1].message_type
    if not path:
        return wrapped(UNKNOWN_FIELD, b"\x01" * size)
    last, *outer = reversed(path)
    if last.message_type is not None:
        # Of each two bytes: tag and length of an empty message.
        one = wrapped(last.number, b"")
        data = one * (size // len(one))
    else:
        # Ids 1, or characters U+0001.
        data = wrapped(last.number, b"\x01" * size)
    for field in outer:
        data = wrapped(field.number, data)
    return data


def _is_length_delimited(field: FieldDescriptor) -> bool:
    return field.is_repeated or field.cpp_type in (FieldDescriptor.CPPTYPE_MESSAGE, FieldDescriptor.CPPTYPE_STRING)


def wrapped(number: int, data: bytes) -> bytes:
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])
