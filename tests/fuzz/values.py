"""Values for any field of any message, by its descriptor: ends of ranges, and what lies beyond them."""

import functools
import math
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

VOCAB_SIZE, MAX_MODEL_LEN = 512, 512
# Ranges of the protocol end here, or powers of two, or the tiny model's vocabulary and length.
NUMBERS = (
    0, 1, 2, 3, 4, 7, 15, 16, 17, 20, 21, 63, 64, 65, 100, 255, 256, 257, 510, VOCAB_SIZE - 1, VOCAB_SIZE, VOCAB_SIZE + 1, 4096,
    16_384, 16_385, 2**31 - 1, 2**31, 2**32 - 1,
)  # fmt: skip
LARGE_NUMBERS = (*NUMBERS, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
REALS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 0.9, 2.0, 2.1, -2.0, -2.1, 100.0, -100.0, 100.1, 0.01, 0.0099, 1 - 2**-24, 1 + 2**-23, 1e-3,
    1.4e-45, 1.17e-38, -1.4e-45, 3.4e38, -3.4e38, math.nan, -math.nan, math.inf, -math.inf,
)  # fmt: skip
TEXTS = (
    "", " ", "t1", "t1 t2 t3", "t511 t512 nobody", "user", "system", "developer", "assistant", "tool", "User", "\x00", "\n\r\t", "😀",
    "\ufffe\uffff\U0010ffff\U0001fffe", "\u202e\ufeff\u200b", "e" + "\u0301" * 50, "t1 " * 200, "x" * 256, "x" * 257, "x" * 1025, "😀" * 4097,
    "x" * 16_385, "{", "{}", "[]", "null", '{"language": "en"}', '{"a": NaN}', '{"tokenize": 1}', '{"self": 1}', '{"": {}}',
    '{"tools": [1]}', '{"documents": 5}', '{"conversations": []}', r'{"mood": "\ud800"}', r'{"bos_token": "\ud800", "x\udfff": "\udfff"}', '{"mood": ["t1"]}', "[" * 1000,
    '{"a":' * 900 + "1" + "}" * 900, '{"a": ' + "9" * 5000 + "}", '{"bos_token": [[]], "messages": []}',
)  # fmt: skip
BLOBS = (b"", b"\x00", b"\xff" * 9, b"\xed\xa0\x80", b"\x00\x00\xc0\x7f", b"x" * 4096)
UNKNOWN_ENUM_NUMBERS = (-1, 9, 127, 128, 2**31 - 1, -(2**31))
# How often what a list holds is repeated. Those of messages are short: a decoder makes an object of each.
REPETITIONS = (1,) * 16 + (2, 2, 5, 17, 70, 70, 600)
MANY_REPETITIONS = (*REPETITIONS * 4, 5_000, 17_000)

_SIGNED = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
_WIDE = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
_REAL = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


@functools.cache
def single_values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Of a field, or of one entry of it where it is repeated."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return st.deferred(lambda: messages(GetMessageClass(field.message_type)))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from((*known_numbers(field.enum_type) * 3, *UNKNOWN_ENUM_NUMBERS))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_STRING:
        is_text = field.type == FieldDescriptor.TYPE_STRING
        return st.sampled_from(TEXTS if is_text else BLOBS) | (
            st.text(max_size=8) if is_text else st.binary(max_size=8)
        )
    if kind in _REAL:
        return st.sampled_from(REALS) | st.floats(width=32)
    assert kind not in _SIGNED, "the protocol has no signed numbers"
    edges, largest = (LARGE_NUMBERS, 2**64 - 1) if kind in _WIDE else (NUMBERS, 2**32 - 1)
    return st.sampled_from(edges) | st.integers(0, 20) | st.integers(0, largest)


@functools.cache
def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """What `put` takes for a field."""
    if is_map(field):
        key, value = (single_values(each) for each in field.message_type.fields)
        few, many = st.dictionaries(key, value, max_size=4), st.sampled_from((17, 1000, 16_384, 16_385))
        return st.one_of(few, few, few, st.builds(lambda count, bias: dict.fromkeys(range(count), bias), many, value))
    if not field.is_repeated:
        return single_values(field)
    times = REPETITIONS if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE else MANY_REPETITIONS
    return st.builds(
        lambda some, count: some * count, st.lists(single_values(field), max_size=3), st.sampled_from(times)
    )


def put(message: Message, field: FieldDescriptor, value: Any) -> None:
    """Sets a field; what a repeated one held before is gone."""
    message.ClearField(field.name)
    if is_map(field):
        getattr(message, field.name).update(value)
    elif field.is_repeated:
        getattr(message, field.name).extend(value)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], most_fields: int = 4) -> Message:
    """A message with a few of its fields set, to anything."""
    message = kind()
    if kind.DESCRIPTOR.fields:
        for field in draw(st.lists(fields_of(kind.DESCRIPTOR), max_size=most_fields)):
            put(message, field, draw(values(field)))
    return message


@functools.cache
def fields_of(descriptor: Descriptor) -> st.SearchStrategy[FieldDescriptor]:
    """One of a message's fields, which has some."""
    return st.sampled_from(tuple(descriptor.fields))


def known_numbers(enum: EnumDescriptor) -> tuple[int, ...]:
    return tuple(each.number for each in enum.values)
