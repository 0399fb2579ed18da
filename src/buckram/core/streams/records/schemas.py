"""The schema of a stream's values: its versions in the stream's properties, and how one may follow another. Pure.

A value is Avro's single-object encoding: two bytes of a mark, eight bytes that tell the version, and the record in
Avro's binary form. So records of several versions may stand side by side, whoever wrote them. Not here: types
(`avro_types.py`), bytes of records (`streams/shared/record_values.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from buckram.core.streams.records.avro_types import AvroType, Field, fingerprint, parse
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


__all__ = ["HEAD_BYTES", "MARK", "PREFIX", "RecordSchemas", "check_no_schema", "with_schema"]
