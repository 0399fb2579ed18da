"""The schema of a stream's values: types, versions in the stream's properties, how one may follow another. Pure.

A value is Avro's single-object encoding: two bytes of a mark, eight bytes that tell the version, and the record in
Avro's binary form. So records of several versions may stand side by side, whoever wrote them. Types are parsed from
Avro's JSON; a canonical form and its fingerprint identify a version, and each type has a name in Spark.

Not here: bytes of records (`streams/shared/record_values.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from buckram.errors import InvalidArgument

PREFIX = "schema."
"""Prefix of the properties that hold versions: schema.1 is the oldest."""

MARK = b"\xc3\x01"

HEAD_BYTES = len(MARK) + 8
"""Bytes at the beginning of each value: the mark, and the fingerprint of the version."""

MAX_VERSIONS = 100

_PROPERTY = re.compile(re.escape(PREFIX) + r"([1-9][0-9]{0,3})")

_WIDER = {("int", "long"), ("int", "double"), ("float", "double")}


@dataclass(frozen=True)
class RecordSchemas:
    """All versions of a stream's schema, the oldest first; Avro's JSON of each."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> RecordSchemas | None:
        """Return the schemas that a stream's properties hold; None if it has none."""
        found: dict[int, str] = {}
        for name, text in properties.items():
            if match := _PROPERTY.fullmatch(name):
                found[int(match[1])] = text
        texts = tuple(text for _, text in sorted(found.items()))
        return cls(texts) if texts else None

    @property
    def version(self) -> int:
        """Return the number of the newest version; the oldest is 1."""
        return len(self.texts)

    @cached_property
    def newest(self) -> AvroType:
        """Return the type of the newest version."""
        return parse(self.texts[-1])

    @cached_property
    def heads(self) -> dict[bytes, int]:
        """Return the number of each version, by the bytes that its values begin with."""
        return {MARK + fingerprint(text): number for number, text in enumerate(self.texts, 1)}

    def version_of(self, value: bytes) -> int | None:
        """Return the version that a value was written by; None if it is not of a version of this schema."""
        return self.heads.get(bytes(value[:HEAD_BYTES]))


def with_schema(stream: str, properties: Mapping[str, str], text: str) -> dict[str, str]:
    """Return the properties with `text` as the newest version; as they are if it is that already.

    Raises InvalidArgument for what is no schema, for one that may not follow the newest version, and for too many.
    """
    wanted = parse(text)
    compact = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    present = RecordSchemas.of(properties)
    if present is None:
        return {**properties, f"{PREFIX}1": compact}
    if present.texts[-1] == compact:
        return dict(properties)
    if trouble := _fault(present.newest, wanted, ""):
        raise InvalidArgument(
            f"stream {stream}: this schema may not follow version {present.version}: {trouble}. A new version may add "
            "fields that are null by default, make types wider (int to long or double, float to double) and let null "
            "in; for other changes make another stream"
        )
    if fingerprint(compact) in {head[len(MARK) :] for head in present.heads}:
        raise InvalidArgument(
            f"stream {stream}: values of this schema look like those of an earlier version, which differs in nothing "
            "that Avro writes; change a name, or leave the schema as it is"
        )
    if present.version >= MAX_VERSIONS:
        raise InvalidArgument(f"stream {stream}: its schema has {MAX_VERSIONS} versions, which is the limit")
    return {**properties, f"{PREFIX}{present.version + 1}": compact}


def check_no_schema(stream: str, names: Mapping[str, object]) -> None:
    """Raise InvalidArgument if one of these properties is a version of the schema, which has rules of its own."""
    for name in names:
        if _PROPERTY.fullmatch(name):
            raise InvalidArgument(
                f"stream {stream}: property {name} is a version of its schema; `buckram stream set {stream} --schema "
                "FILE` adds one, and none is taken back"
            )


def _fault(old: AvroType, new: AvroType, where: str) -> str:
    """Return what is wrong with `new` in the place of `old`; empty if nothing is."""
    place = f"field {where}" if where else "the record"
    if old.nullable and not new.nullable:
        return f"{place} may be null in it and not any more"
    if old.kind != new.kind:
        if (old.kind, new.kind) in _WIDER and not old.logical and not new.logical:
            return ""
        return f"{place} was {old.shown} and would be {new.shown}"
    if (old.logical, old.scale) != (new.logical, new.scale) or old.precision > new.precision or old.size != new.size:
        return f"{place} was {old.shown} and would be {new.shown}"
    if old.name != new.name:
        return f"{place} was named {old.name} and would be named {new.name}"
    if gone := [symbol for symbol in old.symbols if symbol not in new.symbols]:
        return f"{place} would lose the symbol {gone[0]}"
    if old.inner is not None and new.inner is not None:
        return _fault(old.inner, new.inner, f"{where}[]")
    return _fault_of_fields(old.fields, new.fields, where)


def _fault_of_fields(old: tuple[Field, ...], new: tuple[Field, ...], where: str) -> str:
    after, dot = {one.name: one for one in new}, f"{where}." if where else ""
    for one in old:
        if one.name not in after:
            return f"field {dot}{one.name} would be gone"
        if trouble := _fault(one.type, after[one.name].type, f"{dot}{one.name}"):
            return trouble
    before = {one.name for one in old}
    for one in new:
        if one.name not in before and not one.null_default:
            return (
                f'field {dot}{one.name} is new and has no null for the records before: give it "type": ["null", ...] '
                'and "default": null'
            )
    return ""


# -- types ----------------------------------------------------------------------------------------------------

MAX_BYTES = 16 * 1024
"""Maximum bytes of the JSON of one version of a schema."""

MAX_DEPTH = 16

PRIMITIVES: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
"""Spark's name of each of Avro's primitive types."""

LOGICAL: Mapping[tuple[str, str], str] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp_ltz",
    ("long", "timestamp-micros"): "timestamp_ltz",
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type. `kind` is Avro's name of it; `nullable`: it is a union with null."""

    kind: str
    nullable: bool = False
    logical: str = ""
    name: str = ""
    """Full name of a record, enum or fixed; empty for other types."""
    fields: tuple[Field, ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    """Bytes of a fixed; 0 for other types."""
    precision: int = 0
    scale: int = 0
    """Digits after the point of a decimal; 0 for other types."""
    inner: AvroType | None = None
    """Type of the items of an array or of the values of a map; None for other types."""

    @property
    def shown(self) -> str:
        """Return the type as error messages show it."""
        what = {"array": "array", "map": "map"}.get(self.kind, self.logical or self.kind)
        if self.logical == "decimal":
            what = f"decimal({self.precision}, {self.scale})"
        if self.inner is not None:
            what += f" of {self.inner.shown}"
        return f"{what} or null" if self.nullable else what

    @property
    def ddl(self) -> str:
        """Return the type in Spark's DDL, in which every field is nullable."""
        if self.kind == "record":
            return "struct<" + ",".join(f"`{one.name}`:{one.type.ddl}" for one in self.fields) + ">"
        if self.inner is not None:
            return f"array<{self.inner.ddl}>" if self.kind == "array" else f"map<string,{self.inner.ddl}>"
        if self.logical == "decimal":
            return f"decimal({self.precision},{self.scale})"
        other = {"enum": "string", "fixed": "binary"}
        return LOGICAL.get((self.kind, self.logical)) or other.get(self.kind) or PRIMITIVES[self.kind]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record. `null_default`: a record that lacks it is read with null."""

    name: str
    type: AvroType
    null_default: bool = False


def parse(text: str) -> AvroType:
    """Parse the JSON of a record schema. Raises InvalidArgument, which names the place and what is needed."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise InvalidArgument(f"a schema of {len(text.encode(errors='replace'))} bytes, the limit is {MAX_BYTES}")
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"a schema is Avro's JSON ({error})") from None
    found = _Parser().type(raw, "the schema", "", 0)
    if found.kind != "record" or found.nullable:
        raise InvalidArgument(f"a schema is that of a record, not of {found.shown}: " + '{"type": "record", ...}')
    return found


class _Parser:
    """Parses one schema; names of types that were defined before may be used for them."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._open: dict[str, None] = {}

    def type(self, raw: Any, where: str, space: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"{where}: types within types, the limit is {MAX_DEPTH}")
        if isinstance(raw, list):
            return self._union(raw, where, space, depth)
        if isinstance(raw, str):
            return self._known(raw, where, space)
        if not isinstance(raw, dict) or "type" not in raw:
            raise InvalidArgument(f'{where}: {str(raw)[:60]!r} is no type; needs a name, a union, or {{"type": ...}}')
        kind = raw["type"]
        if not isinstance(kind, str):
            return self.type(kind, where, space, depth + 1)
        if kind in ("array", "map"):
            inner = self.type(raw.get("items" if kind == "array" else "values"), where, space, depth + 1)
            return AvroType(kind, inner=inner)
        if kind in ("record", "enum", "fixed"):
            return self._definition(kind, raw, where, space, depth)
        return self._logical(self._known(kind, where, space), raw, where)

    def _union(self, raw: list[Any], where: str, space: str, depth: int) -> AvroType:
        others = [one for one in raw if one != "null"]
        if len(raw) > 2 or len(others) != 1:
            raise InvalidArgument(f"{where}: a union is of null and one type here, not of {json.dumps(raw)[:80]}")
        found = self.type(others[0], where, space, depth + 1)
        return replace(found, nullable=len(raw) == 2)

    def _known(self, name: str, where: str, space: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not space else f"{space}.{name}"
        if full in self._open:
            raise InvalidArgument(f"{where}: {name} contains itself, which a table cannot have")
        found = self._named.get(full)
        if found is None:
            raise InvalidArgument(
                f"{where}: type {name[:60]!r} is unknown; there are {', '.join(PRIMITIVES)}, null in a union, record, "
                "enum, fixed, array and map"
            )
        return found

    def _definition(self, kind: str, raw: Mapping[str, Any], where: str, space: str, depth: int) -> AvroType:
        name = raw.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgument(f"{where}: a {kind} needs a name of letters, digits and _, not {name!r}")
        given = raw.get("namespace", space)
        full = name if "." in name or not given else f"{given}.{name}"
        if full in self._named or full in self._open:
            raise InvalidArgument(f"{where}: {full} is defined twice")
        self._open[full] = None
        found = AvroType(kind, name=full)
        if kind == "record":
            found = replace(found, fields=self._fields(raw.get("fields"), where, full.rpartition(".")[0], depth))
        elif kind == "enum":
            symbols = raw.get("symbols")
            if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
                raise InvalidArgument(f"{where}: enum {full} needs symbols, a list of texts")
            found = replace(found, symbols=tuple(symbols))
        else:
            size = raw.get("size")
            if type(size) is not int or size < 1:
                raise InvalidArgument(f"{where}: fixed {full} needs a size of at least 1, not {size!r}")
            found = self._logical(replace(found, size=size), raw, where)
        del self._open[full]
        self._named[full] = found
        return found

    def _fields(self, raw: Any, where: str, space: str, depth: int) -> tuple[Field, ...]:
        if not isinstance(raw, list) or not raw:
            raise InvalidArgument(f"{where}: a record needs fields, a list that is not empty")
        found: dict[str, Field] = {}
        for one in raw:
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name) or "." in name:
                raise InvalidArgument(f"{where}: a field needs a name of letters, digits and _, not {str(name)[:60]!r}")
            if name.lower() in (other.lower() for other in found):
                raise InvalidArgument(
                    f"{where}: field {name} comes twice, because Spark does not distinguish "
                    "small letters from capitals; rename one"
                )
            inside = self.type(one.get("type"), f"field {name}", space, depth + 1)
            found[name] = Field(name, inside, inside.nullable and "default" in one and one["default"] is None)
        return tuple(found.values())

    @staticmethod
    def _logical(found: AvroType, raw: Mapping[str, Any], where: str) -> AvroType:
        logical = raw.get("logicalType")
        if logical == "decimal" and found.kind in ("bytes", "fixed"):
            precision, scale = raw.get("precision"), raw.get("scale", 0)
            if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= _MAX_PRECISION:
                raise InvalidArgument(
                    f"{where}: decimal({precision}, {scale}): needs a precision up to {_MAX_PRECISION}, and a scale up "
                    "to the precision"
                )
            return replace(found, logical="decimal", precision=precision, scale=scale)
        if isinstance(logical, str) and (found.kind, logical) in LOGICAL:
            return replace(found, logical=logical)
        return found  # As Avro has it: an unknown logical type is the type itself.


# -- fingerprints -----------------------------------------------------------------------------------------

_EMPTY = 0xC15D213AA4D7A795


def _table() -> list[int]:
    found = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))
        found.append(value)
    return found


_TABLE = _table()


def fingerprint(text: str) -> bytes:
    """Return Avro's 64-bit Rabin fingerprint of a schema's parsing canonical form: 8 bytes, the lowest first."""
    value = _EMPTY
    for byte in canonical(json.loads(text), "").encode():
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value.to_bytes(8, "little")


def canonical(raw: Any, space: str) -> str:
    """Return Avro's parsing canonical form of a schema that `parse` took."""
    if isinstance(raw, str):
        plain = raw in PRIMITIVES or raw == "null" or "." in raw or not space
        return json.dumps(raw if plain else f"{space}.{raw}", ensure_ascii=False)
    if isinstance(raw, list):
        return "[" + ",".join(canonical(one, space) for one in raw) + "]"
    kind = raw["type"]
    if not isinstance(kind, str):
        return canonical(kind, space)
    if kind in ("array", "map"):
        inner = "items" if kind == "array" else "values"
        return f'{{"type":"{kind}","{inner}":{canonical(raw[inner], space)}}}'
    if kind not in ("record", "enum", "fixed"):
        return canonical(kind, space)
    given = raw.get("namespace", space)
    full = raw["name"] if "." in raw["name"] or not given else f"{given}.{raw['name']}"
    head = f'{{"name":{json.dumps(full)},"type":"{kind}"'
    if kind == "enum":
        return head + ',"symbols":[' + ",".join(json.dumps(one, ensure_ascii=False) for one in raw["symbols"]) + "]}"
    if kind == "fixed":
        return f'{head},"size":{raw["size"]}}}'
    within = full.rpartition(".")[0]
    fields = (f'{{"name":{json.dumps(one["name"])},"type":{canonical(one["type"], within)}}}' for one in raw["fields"])
    return head + ',"fields":[' + ",".join(fields) + "]}"
