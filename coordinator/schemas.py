"""Rewrites a JSON Schema so that the grammar library keeps to it exactly, and names what can't be enforced.

What an answer contains is valid against the client's own schema, but for the keywords named. The rewritten schema may allow
less: bounds move inward to the next number that the library knows.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from coordinator.patterns import Starts, UnsupportedPattern, read_pattern
from coordinator.schema_values import (
    CHECKS,
    MAX_BOUND,
    MAX_COUNT,
    MAX_OPEN_BOUND,
    NO_LIMIT,
    Check,
    Unable,
    Wrong,
    has_no_multiple,
    is_written,
    lowest,
    short,
)
from paceline.checks import require_at_most
from paceline.errors import InvalidArgument

MAX_DEPTH = 64
# Characters of the pointers to all places: those below a long name have it in theirs.
MAX_POINTER_CHARACTERS = 1 << 22
# Characters that may be added where the schema of a pattern is written once for each key.
MAX_ADDED_CHARACTERS = 1 << 18
# They constrain nothing, and beside a circular reference the library takes them for constraints.
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly",
     "contentEncoding", "contentMediaType", "contentSchema", "x-guidance")
)  # fmt: skip
NOT_CONSTRAINTS = frozenset(("$defs", "definitions", "$schema", "$id", "id", "$anchor"))
# Where schemas stand in a schema: by name, in a list, alone.
BY_NAME, LISTED = (
    ("properties", "patternProperties", "$defs", "definitions"),
    ("anyOf", "oneOf", "allOf", "prefixItems"),
)
ALONE = ("items", "additionalProperties", "additionalItems")
COMBINED = ("anyOf", "oneOf", "allOf")
# The library's names of drafts. What is new in draft 7, such as `const`, is meant in older ones too.
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFTS = {f"json-schema.org/{each}/schema": _DRAFT_7 for each in ("draft-04", "draft-06", "draft-07")} | {
    f"json-schema.org/{each}/schema": f"https://json-schema.org/{each}/schema" for each in ("draft/2019-09", "draft/2020-12")
}  # fmt: skip
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a schema stands. above: the schema in whose anyOf, oneOf or allOf it is, and that keyword."""

    schema: Schema
    pointer: str
    above: "tuple[_Place, str] | None" = None


def enforceable(schema: Schema, *, strict: bool, field: str, subject: str = "") -> tuple[Schema, list[str]]:
    """Returns the schema as the library can keep to it, and what it leaves out: places in the schema, with the reason.

    Raises InvalidArgument naming `field` for what is left out under `strict`, and otherwise for what is no schema, is
    nested too deeply, or a constant that JSON's numbers can't hold. `subject`: whose the schema is.
    """
    rewriter = _Rewriter(strict, field, subject)
    return rewriter.rewrite(schema), rewriter.left_out


class _Rewriter:
    def __init__(self, strict: bool, field: str, subject: str) -> None:
        self.left_out = list[str]()
        self._strict, self._field, self._subject = strict, field, subject
        self._seen = set[int]()
        # Inner ones first.
        self._places = list[_Place]()
        # Of all properties: an allOf or a reference may bring them together with any pattern.
        self._names = set[str]()
        self._room = MAX_ADDED_CHARACTERS
        self._num_pointer_characters = 0

    def rewrite(self, given: Schema) -> Schema:
        root: Schema = self._copy(given, 0)
        self._name_draft(root)
        self._walk(_Place(root, ""), 0)
        self._walk_referred(root)
        references = [each for each in self._places if "$ref" in each.schema]
        self._drop_ids(references)
        for each in _circular(references):
            self._free(each)
        for each in self._places:
            self._use_patterns(each)
            self._count_properties(each)
        return root

    def _copy(self, value: Any, depth: int) -> Any:
        require_at_most(4 * MAX_DEPTH, depth, self._field, "levels")
        if isinstance(value, dict):
            return {key: self._copy(each, depth + 1) for key, each in value.items()}
        return [self._copy(each, depth + 1) for each in value] if isinstance(value, list) else value

    def _refuse(self, pointer: str, reason: object) -> InvalidArgument:
        return InvalidArgument(self._field, f"{self._subject}can't be enforced: {pointer or '/'}: {reason}".lstrip())

    def _leave_out(self, pointer: str, reason: object) -> None:
        if self._strict:
            raise self._refuse(pointer, reason)
        self.left_out.append(f"{self._subject}{pointer}: {reason}")

    def _name_draft(self, root: Schema) -> None:
        if "$schema" not in root:
            return
        given = root.pop("$schema")
        name = given.partition("://")[2].removesuffix("#") if isinstance(given, str) else ""
        if name in DRAFTS:
            root["$schema"] = DRAFTS[name]
        else:
            self._leave_out("/$schema", "an unknown draft")

    def _walk(self, place: _Place, depth: int) -> None:
        schema = place.schema
        if id(schema) in self._seen:
            return
        require_at_most(MAX_DEPTH, depth, self._field, "levels")
        self._seen.add(id(schema))
        for keyword in ANNOTATIONS & schema.keys():
            del schema[keyword]
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        self._move_bounds(place)
        if place.pointer:
            schema.pop("$schema", None)
        # In one order everywhere: the grammar's text is the same on every coordinator.
        for keyword, check in CHECKS.items():
            if keyword in schema:
                self._check(place, keyword, check)
        if has_no_multiple(schema):
            _forbid(schema)
        # Of what is no object the library says so.
        if isinstance(properties := schema.get("properties"), dict):
            self._names.update(properties)
        self._names.update(schema.get("required", ()))
        for keyword, inner, pointer in list(self._inner(place)):
            self._walk(_Place(inner, pointer, (place, keyword) if keyword in COMBINED else None), depth + 1)
        self._places.append(place)

    def _check(self, place: _Place, keyword: str, check: "Check") -> None:
        pointer = f"{place.pointer}/{keyword}"
        try:
            checked = check(place.schema.pop(keyword))
        except Wrong as error:
            raise self._refuse(pointer, error) from None
        except Unable as error:
            self._leave_out(pointer, error)
        else:
            if checked is not NO_LIMIT:
                place.schema[keyword] = checked

    def _inner(self, place: _Place) -> Iterator[tuple[str, Schema, str]]:
        """Yields the keyword, schema and pointer of each schema in one, but true and false."""
        for keyword in BY_NAME + LISTED + ALONE:
            if keyword not in place.schema:
                continue
            value, pointer = place.schema[keyword], f"{place.pointer}/{keyword}"
            if keyword in BY_NAME and isinstance(value, dict):
                members = [(each, f"/{_escaped(name)}") for name, each in value.items()]
            elif keyword in (*LISTED, "items") and isinstance(value, list):
                members = [(each, f"/{at}") for at, each in enumerate(value)]
            elif keyword in ALONE:
                members = [(value, "")]
            else:
                raise self._refuse(pointer, "schemas are expected")
            for each, name in members:
                there = pointer + name
                self._num_pointer_characters += len(there)
                require_at_most(
                    MAX_POINTER_CHARACTERS,
                    self._num_pointer_characters,
                    self._field,
                    "characters in all pointers into it",
                )
                if isinstance(each, dict):
                    yield keyword, each, there
                elif not isinstance(each, bool):
                    raise self._refuse(there, "a schema is expected")

    def _walk_referred(self, root: Schema) -> None:
        """Walks the schemas that only references lead to, which may be under any key."""
        at = 0
        while at < len(self._places):
            target = self._places[at].schema.get("$ref")
            if isinstance(target, str) and (found := _find(root, target)) is not None:
                self._walk(_Place(found, unquote(target[1:])), 0)
            at += 1

    def _drop_ids(self, references: list[_Place]) -> None:
        """Drops ids that no reference needs: the library refuses some that are no URI."""
        with_id = [each for each in self._places if "$id" in each.schema]
        is_local = all(each.schema["$ref"].startswith("#") for each in references)
        if is_local and (not references or all(each.pointer == "" for each in with_id)):
            for each in with_id:
                del each.schema["$id"]

    def _free(self, place: _Place) -> None:
        """Leaves out what stands beside a circular reference, which the library takes alone."""
        keyword = "$ref"
        while True:
            schema, pointer = place.schema, place.pointer
            for other in sorted(schema.keys() - {keyword} - NOT_CONSTRAINTS):
                del schema[other]
                self._leave_out(f"{pointer}/{other}", "beside a circular reference")
            if place.above is None:
                return
            inner = place
            place, keyword = place.above
            if keyword == "allOf" and len(place.schema.get(keyword, ())) > 1:
                place.schema["allOf"] = [inner.schema]
                self._leave_out(f"{place.pointer}/allOf", "beside a circular reference")

    def _move_bounds(self, place: _Place) -> None:
        """Writes bounds as inclusive ones: the library does not exclude 5 from 5 to 5.5."""
        ends = dict[str, float]()
        for name, sign in (("Minimum", 1), ("Maximum", -1)):
            inclusive, exclusive = name.lower(), f"exclusive{name}"
            # Draft 4 has a flag in place of a bound.
            if isinstance(flag := place.schema.get(exclusive), bool):
                del place.schema[exclusive]
                if flag:
                    place.schema[exclusive] = place.schema.pop(inclusive, None)
            for keyword in (inclusive, exclusive):
                if keyword in place.schema:
                    value = place.schema.pop(keyword)
                    try:
                        bound = lowest(value, sign, is_excluded=keyword == exclusive)
                    except Unable as error:
                        self._leave_out(f"{place.pointer}/{keyword}", error)
                    else:
                        ends[inclusive] = max(bound, ends.get(inclusive, bound))
        if not ends:
            return
        low, high = ends.get("minimum", -MAX_BOUND), -ends.get("maximum", -MAX_BOUND)
        if "minimum" in ends or high < -MAX_OPEN_BOUND:
            place.schema["minimum"] = short(low)
        if "maximum" in ends or low > MAX_OPEN_BOUND:
            place.schema["maximum"] = short(high)
        if low == high and not is_written(low, 1 << 53):
            _forbid(place.schema)

    def _use_patterns(self, place: _Place) -> None:
        """Rewrites patterns of keys.

        Where properties name all that a pattern matches, the library would let a key begin that can't end. So such keys
        become properties, and a pattern that matches every key says what all others are.
        """
        schema = place.schema
        if "patternProperties" not in schema:
            return
        kept, always, told_apart = dict[str, Any](), list[Any](), Starts()
        properties: dict[str, Any] = schema.get("properties", {})
        patterns: dict[str, Any] = schema.pop("patternProperties")
        for text, value in patterns.items():
            pointer = f"{place.pointer}/patternProperties/{_escaped(text)}"
            try:
                pattern = read_pattern(text)
                if pattern.matches_all:
                    always.append(value)
                elif pattern.texts is not None and (pattern.texts <= self._names or len(patterns) > 1):
                    self._make_room(value, len(pattern.texts))
                    for name in sorted(pattern.texts):
                        properties[name] = _both(properties[name], value) if name in properties else value
                elif pattern.text in kept:
                    kept[pattern.text] = _both(kept[pattern.text], value)
                elif self._strict or told_apart.add(pattern.starts):
                    kept[pattern.text] = value
                else:
                    raise Unable("another pattern may match the same key")
            except (UnsupportedPattern, Unable) as error:
                self._leave_out(pointer, error)
        if always:
            try:
                self._make_room(always, len(properties) + len(kept) + 1)
                for table in (properties, kept):
                    table.update({name: _both(each, *always) for name, each in table.items()})
                schema["additionalProperties"] = _both(*always)
            except Unable as error:
                self._leave_out(f"{place.pointer}/patternProperties", error)
        schema |= {"properties": properties} if properties else {}
        schema |= {"patternProperties": kept} if kept else {}

    def _make_room(self, value: Any, copies: int) -> None:
        self._room -= len(json.dumps(value)) * copies
        if self._room < 0:
            raise Unable(f"more than {MAX_ADDED_CHARACTERS} characters to add")

    def _count_properties(self, place: _Place) -> None:
        """Leaves out numbers of properties that can't be counted.

        Properties that may be left out are not counted, and a key that is no property may come twice.
        """
        schema = place.schema
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", MAX_COUNT)
        required, properties = set(schema.get("required", ())), schema.get("properties", {}).keys()
        is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
        if least <= len(required):
            schema.pop("minProperties", None)
        elif not properties <= required or least > len(required) + 1:
            del schema["minProperties"]
            self._leave_out(f"{place.pointer}/minProperties", "more than the required properties and one")
        if is_closed and most >= len(properties | required):
            schema.pop("maxProperties", None)
        elif "maxProperties" in schema and not properties <= required:
            del schema["maxProperties"]
            self._leave_out(f"{place.pointer}/maxProperties", "beside properties that are not required")


def _forbid(schema: Schema) -> None:
    """Allows no value, which the library sees before an answer begins."""
    schema["enum"] = []


def _both(*schemas: Any) -> Any:
    return {"allOf": list(schemas)} if len(schemas) > 1 else schemas[0]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _find(root: Schema, reference: str) -> Schema | None:
    """Returns the schema that a JSON pointer in a fragment leads to."""
    found: Any = root
    if not reference.startswith("#/"):
        return root if reference == "#" else None
    for key in unquote(reference[2:]).split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and len(key) < 7 and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found if isinstance(found, dict) else None


def _circular(references: list[_Place]) -> list[_Place]:
    """Returns the references that may lead back to themselves."""
    targets = {
        each.pointer: unquote(each.schema["$ref"][1:]) for each in references if each.schema["$ref"].startswith("#")
    }
    # Which of the schemas referred to leads to which.
    leads: dict[str, set[str]] = {target: set() for target in targets.values()}
    around = dict[str, list[str]]()
    for pointer, target in targets.items():
        ends = [0, *(at for at, character in enumerate(pointer) if character == "/"), len(pointer)]
        around[pointer] = [pointer[:end] for end in ends if pointer[:end] in leads]
        for each in around[pointer]:
            leads[each].add(target)
    on_circles = _without_ends(_without_ends(leads))
    return [
        each for each in references
        if targets.get(each.pointer) in on_circles and not on_circles.keys().isdisjoint(around[each.pointer])
    ]  # fmt: skip


def _without_ends(leads: dict[str, set[str]]) -> dict[str, set[str]]:
    """Removes, again and again, what leads to nothing; returns the rest the other way round."""
    back: dict[str, set[str]] = {each: set() for each in leads}
    for each, others in leads.items():
        for other in others:
            back[other].add(each)
    ends = [each for each, others in leads.items() if not others]
    rest = {each: set(others) for each, others in leads.items()}
    while ends:
        end = ends.pop()
        del rest[end]
        for each in back.pop(end):
            rest[each].discard(end)
            if not rest[each]:
                ends.append(each)
    return {each: others & rest.keys() for each, others in back.items()}
