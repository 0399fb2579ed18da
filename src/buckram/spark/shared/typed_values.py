"""Values of streams with a schema as a column of structs instead of bytes, read and written.

The type of the column `value` decides: a struct is decoded and encoded by the schema of the record's stream, bytes stay
bytes. Not here: schemas and their versions (`core/streams/records/schemas.py`), one record
(`streams/shared/record_values.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.names import stream_name
from buckram.core.streams.records.schemas import HEAD_BYTES, RecordSchemas
from buckram.errors import BuckramError, InvalidArgument, NoSuchStream, SchemaMismatch
from buckram.spark.shared.bounded_gather import run_in_order
from buckram.spark.shared.clients import connection
from buckram.spark.shared.columns import STRUCT
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.record_values import RecordCodec

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.cluster import Client
    from buckram.core.streams.records.batch import Batch


# -- which schema -----------------------------------------------------------------------------------------


async def schemas_of(client: Client, names: Sequence[str]) -> dict[str, RecordSchemas]:
    """Return the schemas of these streams, without streams that have none or do not exist."""
    store = StreamStore(client.services.store)

    async def one(name: str) -> RecordSchemas | None:
        try:
            head = (await store.read(stream_name(name))).head
            check_usable(name, head)
        except NoSuchStream:
            return None
        return RecordSchemas.of(head.properties)

    found = await run_in_order([partial(one, name) for name in names])
    return {name: schemas for name, schemas in zip(names, found, strict=True) if schemas is not None}


def value_type(uri: str, streams: Sequence[str], wanted: str) -> str:
    """Return the type of the column `value` in Spark's words. `wanted`: auto, typed or bytes.

    `streams`: those that are named; none for a pattern. Auto is typed if all of them have a schema of the same fields.
    Raises InvalidArgument for `typed` where they have not; for auto whatever is wrong comes out when the read is
    planned.
    """
    if wanted == "bytes" or (wanted == "auto" and not streams):
        return "binary"
    if not streams:
        raise InvalidArgument('option "values" = "typed": name the streams (subscribe), a pattern has no schema')
    try:
        found = connection(uri).run(lambda client: schemas_of(client, streams))
    except BuckramError:
        if wanted == "typed":
            raise
        return "binary"
    types = {name: schemas.newest.ddl for name, schemas in found.items()}
    if len(types) == len(streams) and len(set(types.values())) == 1:
        return next(iter(types.values()))
    if wanted == "auto":
        return "binary"
    if missing := [name for name in streams if name not in types]:
        raise InvalidArgument(f'option "values" = "typed": stream {missing[0]} has no schema; {_SET}')
    one, other, *_ = types
    raise InvalidArgument(
        f'option "values" = "typed": streams {one} and {other} have different fields; read them apart, or ask for the '
        'fields that both have: .schema("value struct<...>")'
    )


_SET = "`buckram stream set NAME --schema FILE` gives it one"


# -- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ValueReader:
    """Decodes the values of one stream into an Arrow column of `kind`, a struct type.

    `texts` are the versions that were there when the read was planned; later ones are looked up.
    """

    uri: str
    stream: str
    texts: tuple[str, ...]
    kind: Any

    def columns(self) -> Callable[[Batch], pa.Array]:
        """Return what makes a column of the values of a batch. Raises SchemaMismatch, which names the offset."""
        known = [RecordCodec(self.stream, RecordSchemas(self.texts))] if self.texts else []

        def codec(value: bytes | None) -> RecordCodec | None:
            """Return the codec; newer versions are looked up if it does not know that of this value."""
            if not known or (value is not None and known[0].version_of(value) is None):
                found = connection(self.uri).run(lambda client: schemas_of(client, [self.stream]))
                if self.stream not in found:
                    raise SchemaMismatch(self.stream, f"has no schema and is read as {STRUCT}...>; {_SET}")
                known[:] = [RecordCodec(self.stream, found[self.stream])]
            return known[0]

        convert = _from_record(self.kind)

        def column(batch: Batch) -> pa.Array:
            import pyarrow as pa

            values = [None if one is None else bytes(one) for one in batch.values()]
            present = next((one for one in values if one is not None), None)
            chosen = codec(present)
            assert chosen is not None
            if any(one is not None and chosen.version_of(one) is None for one in values):
                strange = next(one for one in values if one is not None and chosen.version_of(one) is None)
                chosen = codec(strange)
                assert chosen is not None
            decode = chosen.decoder()
            rows = [
                None if one is None else convert(decode(one, batch.first_offset + place))
                for place, one in enumerate(values)
            ]
            try:
                return pa.array(rows, self.kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
                raise InvalidArgument(
                    f"stream {self.stream}: the values from offset {batch.first_offset} on do not fit {self.kind}: "
                    f"{error}; ask for the types of the schema, {chosen.schemas.newest.ddl}"
                ) from None

        return column


def _from_record(kind: Any) -> Callable[[Any], Any]:
    """Return what makes of a decoded value what Arrow takes for this type: pairs instead of dicts for maps."""
    import pyarrow as pa

    if not _has_map(kind):
        return lambda value: value
    if pa.types.is_map(kind):
        inner = _from_record(kind.item_type)
        return lambda value: None if value is None else [(name, inner(one)) for name, one in value.items()]
    if pa.types.is_list(kind):
        inner = _from_record(kind.value_type)
        return lambda value: None if value is None else [inner(one) for one in value]
    fields = {kind.field(n).name: _from_record(kind.field(n).type) for n in range(kind.num_fields)}
    return lambda value: None if value is None else {name: of(value.get(name)) for name, of in fields.items()}


def _has_map(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_map(kind):
        return True
    if pa.types.is_list(kind):
        return _has_map(kind.value_type)
    return pa.types.is_struct(kind) and any(_has_map(kind.field(n).type) for n in range(kind.num_fields))


# -- writing ----------------------------------------------------------------------------------------------


def check_columns(stream: str, schemas: RecordSchemas | None, value: Any) -> None:
    """Check the type of the column `value` that a sink gets against the stream's schema. Raises InvalidArgument."""
    typed = value.simpleString().startswith(STRUCT)
    if schemas is None:
        if typed:
            raise InvalidArgument(f'column "value" is a struct, and stream {stream} has no schema; {_SET}')
        return
    if not typed:
        return  # Bytes that are records of the schema, which the tasks check.
    there = {field.name: field.dataType.simpleString() for field in value.fields}
    fields = {field.name: field for field in schemas.newest.fields}
    for name, kind in there.items():
        if name not in fields:
            raise InvalidArgument(
                f"stream {stream}: field {name} of column value is not in version {schemas.version} of its schema, "
                f"which has {', '.join(fields)}; leave it out, or add it to the schema first"
            )
        wanted = fields[name].type.ddl.replace("`", "").replace("timestamp_ltz", "timestamp")
        if kind != wanted and (kind, wanted) not in _FIT and not (STRUCT in wanted and STRUCT in kind):
            raise InvalidArgument(
                f"stream {stream}: field {name} of column value is {kind}, its schema needs {wanted}; cast it"
            )
    for name, field in fields.items():
        if name not in there and not field.type.nullable:
            raise InvalidArgument(f"stream {stream}: field {name} of column value is missing, and may not be null")


_FIT = {("tinyint", "int"), ("smallint", "int"), ("int", "bigint"), ("float", "double"), ("smallint", "bigint")}


class ValueWriter:
    """Makes the values of one stream out of a sink's column `value`. Use it in one task."""

    def __init__(self, stream: str, schemas: RecordSchemas | None) -> None:
        self._stream, self._schemas = stream, schemas
        self._codec: RecordCodec | None = None

    def encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with bytes as its column `value`; bytes are checked to be records of the schema.

        Raises SchemaMismatch, which names the field or the row.
        """
        import pyarrow as pa

        place = batch.schema.get_field_index("value")
        if place < 0:
            return batch
        column = batch.column(place)
        if not pa.types.is_struct(column.type):
            if self._schemas is not None:
                self._check_bytes(column)
            return batch
        if self._codec is None:
            if self._schemas is None:
                raise InvalidArgument(f'column "value" is a struct, and stream {self._stream} has no schema; {_SET}')
            self._codec = RecordCodec(self._stream, self._schemas)
        convert, encode = _to_record(column.type), self._codec.encode
        rows = [None if one is None else encode(convert(one)) for one in column.to_pylist()]
        return batch.set_column(place, pa.field("value", pa.binary()), pa.array(rows, pa.binary()))

    def _check_bytes(self, column: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self._schemas is not None
        heads = pc.binary_slice(column.cast(pa.binary()), 0, HEAD_BYTES)
        for head in pc.unique(heads).to_pylist():
            if head is not None and head not in self._schemas.heads:
                row = pc.index(heads, pa.scalar(head, pa.binary())).as_py()
                raise SchemaMismatch(
                    self._stream,
                    f"the value of row {row} of a task begins with {head!r}, which no version of its schema does; give "
                    "column value as a struct of the schema's fields",
                )


def _to_record(kind: Any) -> Callable[[Any], Any]:
    """Return what makes of an Arrow value what the codec takes: dicts instead of pairs for maps."""
    import pyarrow as pa

    if not _has_map(kind):
        return lambda value: value
    if pa.types.is_map(kind):
        inner = _to_record(kind.item_type)
        return lambda value: None if value is None else {name: inner(one) for name, one in value}
    if pa.types.is_list(kind):
        inner = _to_record(kind.value_type)
        return lambda value: None if value is None else [inner(one) for one in value]
    fields = {kind.field(n).name: _to_record(kind.field(n).type) for n in range(kind.num_fields)}
    return lambda value: None if value is None else {name: of(value.get(name)) for name, of in fields.items()}


def encoded_rows(
    uri: str, rows: Iterator[tuple[str, pa.RecordBatch]], known: Mapping[str, RecordSchemas | None]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each stream with bytes as values. `known`: schemas by stream; those of others are looked up."""
    writers = {stream: ValueWriter(stream, schemas) for stream, schemas in known.items()}
    for stream, batch in rows:
        if stream not in writers:
            found = connection(uri).run(partial(schemas_of, names=[stream]))
            writers[stream] = ValueWriter(stream, found.get(stream))
        yield stream, writers[stream].encoded(batch)


def arrow_type(kind: Any) -> Any:
    """Return the Arrow type of a type of Spark, with the names and nullability that Spark expects.

    Raises InvalidArgument for types that no schema has.
    """
    import pyarrow as pa

    name = kind.typeName()
    if name == "struct":
        return pa.struct([pa.field(one.name, arrow_type(one.dataType), one.nullable) for one in kind.fields])
    if name == "array":
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if name == "map":
        return pa.map_(arrow_type(kind.keyType), pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull))
    if name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    plain = {
        "boolean": pa.bool_(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "binary": pa.binary(),
        "string": pa.string(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    if name not in plain:
        raise InvalidArgument(f'column "value" has a {kind.simpleString()}, which no schema has; ask for another type')
    return plain[name]
