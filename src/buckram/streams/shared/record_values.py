"""Values of a stream with a schema: records to bytes and back, by fastavro (the extra `avro`).

Not here: versions and their rules (`core/streams/records/schemas.py`), columns of Spark
(`spark/shared/typed_values.py`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from buckram.core.streams.records.schemas import HEAD_BYTES, MARK, RecordSchemas
from buckram.errors import ConfigError, SchemaMismatch
from buckram.extras import needs
from buckram.types import Buffer

_READ = (
    'read the bytes instead (Spark: option values=bytes, or .schema("value binary")), or write such records to a '
    "stream of their own"
)


class RecordCodec:
    """Encodes records by the newest version of a stream's schema, and decodes values of any version as the newest.

    A record is a dict of its fields: text, numbers, bytes, lists, dicts, and date, datetime and Decimal where the
    schema has such logical types. Raises ConfigError without fastavro.
    """

    def __init__(self, stream: str, schemas: RecordSchemas) -> None:
        try:
            import fastavro
        except ImportError:
            raise ConfigError(needs(f"stream {stream} has a schema, which", "avro")) from None
        self._avro: Any = fastavro
        self.stream = stream
        """Full name of the stream, NAMESPACE/STREAM."""
        self.schemas = schemas
        self._parsed = [self._avro.parse_schema(json.loads(text)) for text in schemas.texts]
        self._head = next(head for head, number in schemas.heads.items() if number == schemas.version)

    @property
    def version(self) -> int:
        """Version of the schema by which records are written."""
        return self.schemas.version

    @property
    def text(self) -> str:
        """Schema of that version, in Avro's JSON."""
        return self.schemas.texts[-1]

    def version_of(self, value: Buffer) -> int | None:
        """Return the version that a value was written by; None if it is not of this schema."""
        return self.schemas.version_of(bytes(value[:HEAD_BYTES]))

    def encode(self, record: Mapping[str, Any]) -> bytes:
        """Return the value of a record. Raises SchemaMismatch, which names the field."""
        out = io.BytesIO(self._head)
        out.seek(HEAD_BYTES)
        try:
            self._avro.schemaless_writer(out, self._parsed[-1], record, strict_allow_default=True)
        except Exception as error:  # fastavro raises what the wrong value happens to raise
            raise self._misfit(record, error) from None
        return out.getvalue()

    def decode(self, value: Buffer, offset: int = -1) -> dict[str, Any]:
        """Return the record of a value, with the fields of the newest version; what an older one lacks is None.

        `offset`: where the value stands, for the error. Raises SchemaMismatch.
        """
        return self.decoder()(value, offset)

    def decoder(self) -> Callable[[Buffer, int], dict[str, Any]]:
        """Return `decode` as a function, for many values."""
        read, newest, parsed, heads = self._avro.schemaless_reader, self._parsed[-1], self._parsed, self.schemas.heads

        def decode(value: Buffer, offset: int) -> dict[str, Any]:
            raw = bytes(value)
            version = heads.get(raw[:HEAD_BYTES])
            if version is None:
                raise self._foreign(raw, offset)
            try:
                return dict(read(io.BytesIO(raw[HEAD_BYTES:]), parsed[version - 1], newest))
            except Exception as error:
                raise SchemaMismatch(
                    self.stream, f"its bytes are no record of version {version} ({error!r}); {_READ}", offset
                ) from None

        return decode

    def _foreign(self, raw: bytes, offset: int) -> SchemaMismatch:
        if raw[: len(MARK)] == MARK:
            what = f"was written by a schema with the fingerprint {raw[len(MARK) : HEAD_BYTES].hex()}"
            return SchemaMismatch(self.stream, f"{what}, which is none of {self.version} versions; {_READ}", offset)
        return SchemaMismatch(self.stream, f"is no Avro record: it begins with {raw[:8]!r}; {_READ}", offset)

    def _misfit(self, record: object, error: Exception) -> SchemaMismatch:
        said = str(error)
        if isinstance(record, Mapping):
            for field in self.schemas.newest.fields:
                one = {"type": "record", "name": "x", "fields": [self._field(field.name)]}
                try:
                    self._avro.schemaless_writer(io.BytesIO(), one, {field.name: record.get(field.name)})
                except Exception as found:
                    shown = repr(record.get(field.name))[:60]
                    needs = f"field {field.name} is {shown}, which is no {field.type.shown}"
                    return SchemaMismatch(self.stream, f"{needs} ({found}); change the record, or the schema first")
            known = {field.name for field in self.schemas.newest.fields}
            if more := [str(name) for name in record if name not in known]:
                said = f"field {more[0]} is not in the schema"
        return SchemaMismatch(self.stream, f"a record does not fit: {said}; change the record, or the schema first")

    def _field(self, name: str) -> Any:
        return next(one for one in self._parsed[-1]["fields"] if one["name"] == name)
