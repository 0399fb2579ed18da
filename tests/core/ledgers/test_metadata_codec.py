"""Bytes of ledger metadata: published samples, Google's protobuf as a second opinion, bad records."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import HEADER, parse, serialise
from buckram.core.wire.protobuf import bytes_field, int_field, varint
from buckram.errors import InvalidArgument, InvariantViolation, MalformedRecord
from buckram.types import DigestType, Fragment, LedgerMetadata, LedgerState

BK1, BK2, BK3, BK4 = (f"bk{number}.example:3181" for number in (1, 2, 3, 4))

NEW_V3 = (
    LedgerMetadata(3, 3, 2, (Fragment(0, (BK1, BK2, BK3)),), password=b"secret", creator_token=0x0123456789ABCDEF),
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a6308031003180020ffffffffffffffffff01280132380a10626b31"
    "2e6578616d706c653a333138310a10626b322e6578616d706c653a333138310a10626b332e6578616d706c653a333138311000380342067365"
    "63726574480260ef9bafcdf8acd19101",
)
CLOSED_V3 = (
    LedgerMetadata(
        3, 2, 2, (Fragment(0, (BK1, BK2, BK3)), Fragment(40, (BK1, BK4, BK3))), LedgerState.CLOSED, 99, 123456,
        DigestType.CRC32, b"", {"application": b"pulsar", "kéy": b"\0\xff"}, 1700000000000,
    ),
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330ab2010802100318c0c4072063280332380a10626b312e6578616d70"
    "6c653a333138310a10626b322e6578616d706c653a333138310a10626b332e6578616d706c653a33313831100032380a10626b312e6578616d"
    "706c653a333138310a10626b342e6578616d706c653a333138310a10626b332e6578616d706c653a3331383110283801420048025080d095ff"
    "bc315a150a0b6170706c69636174696f6e120670756c7361725a0a0a046bc3a979120200ff6000",
)  # fmt: skip
RECOVERING_V2 = (
    LedgerMetadata(
        2, 2, 1, (Fragment(0, (BK1, BK2)),), LedgerState.IN_RECOVERY, digest_type=DigestType.MAC,
        password=b"p\0w\t\xff'", format_version=2,
    ),
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09320a71756f72756d53697a653a20320a656e73656d626c6553697a653a"
    "20320a6c656e6774683a20300a6c617374456e74727949643a202d310a73746174653a20494e5f5245434f564552590a7365676d656e74207b"
    "0a2020656e73656d626c654d656d6265723a2022626b312e6578616d706c653a33313831220a2020656e73656d626c654d656d6265723a2022"
    "626b322e6578616d706c653a33313831220a20206669727374456e74727949643a20300a7d0a646967657374547970653a20484d41430a7061"
    "7373776f72643a2022705c303030775c745c3337375c27220a61636b51756f72756d53697a653a20310a",
)  # fmt: skip
CLOSED_V1 = (
    LedgerMetadata(
        3, 2, 2, (Fragment(0, (BK1, BK2, BK3)), Fragment(5, (BK4, BK2, BK3))), LedgerState.CLOSED, 7, 4096,
        None, None, format_version=1,
    ),
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09310a320a330a343039360a3009626b312e6578616d706c653a33313831"
    "09626b322e6578616d706c653a3331383109626b332e6578616d706c653a333138310a3509626b342e6578616d706c653a3331383109626b32"
    "2e6578616d706c653a3331383109626b332e6578616d706c653a333138310a3709434c4f534544",
)  # fmt: skip


@pytest.mark.parametrize(("metadata", "published"), [NEW_V3, CLOSED_V3, RECOVERING_V2, CLOSED_V1])
def test_published_samples_both_ways(metadata: LedgerMetadata, published: str) -> None:
    assert serialise(metadata).hex() == published
    assert parse(bytes.fromhex(published)) == metadata


def test_states_of_version_1() -> None:
    head = HEADER + b"1\n2\n3\n0\n0\ta\tb\tc\n"
    assert parse(head).state is LedgerState.OPEN
    assert serialise(parse(head)) == head
    recovering = parse(head + b"-102\tCLOSED")
    assert (recovering.state, recovering.last_entry) == (LedgerState.IN_RECOVERY, None)
    assert serialise(recovering) == head + b"-102\tCLOSED"
    empty = parse(head + b"-1\tCLOSED")
    assert (empty.last_entry, empty.length) == (-1, 0)
    assert serialise(empty) == head + b"-1\tCLOSED"


def test_length_and_last_entry_count_only_when_closed() -> None:
    body = parse(serialise(NEW_V3[0]))
    assert (body.last_entry, body.length) == (None, None)
    lying = HEADER + b"2\nquorumSize: 1 ensembleSize: 1 length: 55 lastEntryId: 7 state: OPEN " + SEGMENT_2
    assert (parse(lying).last_entry, parse(lying).length) == (None, None)


def test_every_version_writes_an_open_ledger_without_an_end() -> None:
    assert b"length: 0\nlastEntryId: -1\n" in serialise(replace(NEW_V3[0], format_version=2, creator_token=0))


def test_what_a_version_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="token"):
        serialise(replace(NEW_V3[0], format_version=2))
    plain = CLOSED_V1[0]
    changes: list[dict[str, Any]] = [
        {"password": b""}, {"custom_metadata": {"a": b""}}, {"creation_time_ms": 1}, {"ack_quorum": 1},
        {"creator_token": 1},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(InvalidArgument, match="version 1"):
            serialise(replace(plain, **change))
    with pytest.raises(InvariantViolation, match="S10"):
        serialise(replace(plain, fragments=()))


def test_a_creation_time_is_kept_as_it_was_found() -> None:
    """Some writers stored -1; rewriting must not change it, and none must not become one."""
    for version in (2, 3):
        for time in (None, -1, 0, 1544002383075):
            metadata = replace(NEW_V3[0], format_version=version, creator_token=0, creation_time_ms=time)
            assert parse(serialise(metadata)) == metadata


def test_an_empty_password_is_written() -> None:
    assert b"\x42\x00" in serialise(replace(NEW_V3[0], password=b""))
    assert b'password: ""\n' in serialise(replace(NEW_V3[0], password=b"", format_version=2, creator_token=0))


BODY_3 = (
    int_field(1, 1) + int_field(2, 1) + int_field(3, 9) + int_field(4, 4) + int_field(5, 3)
    + bytes_field(6, bytes_field(1, b"a:1") + int_field(2, 0))
)  # fmt: skip
SEGMENT_2 = b'segment < ensembleMember: "a:1" firstEntryId: 0 >'


def v3(body: bytes) -> bytes:
    return HEADER + b"3\n" + varint(len(body)) + body


def test_absent_optional_fields() -> None:
    metadata = parse(v3(BODY_3))
    assert metadata.ack_quorum == 1, "the write quorum, where none of its own is recorded"
    assert (metadata.password, metadata.digest_type, metadata.creation_time_ms) == (None, None, None)
    assert (metadata.last_entry, metadata.length, metadata.custom_metadata) == (4, 9, {})
    without_password = parse(v3(BODY_3 + int_field(7, 1)))
    assert without_password.digest_type is None, "valid only beside a password"
    assert parse(v3(BODY_3 + int_field(7, 1) + bytes_field(8, b""))).digest_type is DigestType.CRC32


def test_unknown_fields_and_trailing_bytes_are_skipped() -> None:
    extra = (
        BODY_3
        + int_field(99, 5)
        + bytes_field(100, b"x")
        + varint(101 << 3 | 1)
        + b"8" * 8
        + varint(102 << 3 | 5)
        + b"4" * 4
    )
    assert parse(v3(extra)) == parse(v3(BODY_3)) == parse(v3(BODY_3) + b"trailing")


def test_the_last_of_two_custom_values_wins() -> None:
    pair = [bytes_field(11, bytes_field(1, b"k") + bytes_field(2, value)) for value in (b"1", b"2")]
    assert parse(v3(BODY_3 + b"".join(pair))).custom_metadata == {"k": b"2"}


def test_the_whole_text_syntax_is_read() -> None:
    text = rb"""
    # written by hand
    quorumSize: 0x2, ensembleSize: 03; length: 4096 lastEntryId: 7
    state: CLOSED  # done
    segment { ensembleMember: ["a:1", 'b:1', "c" ':' "1"] firstEntryId: 0 }
    segment: < firstEntryId: 5, ensembleMember: "a:1" ensembleMember: "d:1" ensembleMember: "c:1" >
    digestType: CRC32C password: "\a\v\x41\101\n\?\u00e9\U0001f642\xfF" 'tail'
    futureField: { nested < deep: [1, -2, { x: 1 }] > } [some.extension/name]: 1.5e3 ackQuorumSize: 1
    customMetadata { key: "k" value: "\000" } customMetadata { }
    """
    metadata = parse(HEADER + b"2\n" + text)
    assert (metadata.write_quorum, metadata.ensemble_size, metadata.ack_quorum) == (2, 3, 1)
    assert metadata.fragments == (Fragment(0, ("a:1", "b:1", "c:1")), Fragment(5, ("a:1", "d:1", "c:1")))
    assert metadata.password == b"\x07\x0bAA\n?" + "é🙂".encode() + b"\xfftail"
    assert metadata.custom_metadata == {"k": b"\0", "": b""}
    assert (metadata.last_entry, metadata.length) == (7, 4096)


TEXT = b"quorumSize: 1 ensembleSize: 1 length: 0 state: OPEN " + SEGMENT_2
BAD = {
    "empty": b"",
    "wrong key": b"bookieMetadataFormatVersion\t3\n",
    "no newline": HEADER + b"3",
    "newline too late": HEADER + b"0000000003\n" + TEXT,
    "version 0": HEADER + b"0\n",
    "version 4": HEADER + b"4\n" + TEXT,
    "version words": HEADER + b"two\n" + TEXT,
    "v3 nothing": HEADER + b"3\n",
    "v3 empty": HEADER + b"3\n\0",
    "v3 short": v3(BODY_3)[:-1],
    "v3 endless number": HEADER + b"3\n" + b"\xff" * 11,
    "v3 state 4": v3(BODY_3.replace(int_field(5, 3), int_field(5, 4))),
    "v3 digest 9": v3(BODY_3 + int_field(7, 9)),
    "v3 group": v3(BODY_3 + varint(20 << 3 | 3)),
    "v3 field 0": v3(BODY_3 + b"\0\0"),
    "v3 member not UTF-8": v3(BODY_3.replace(b"a:1", b"\xff:1")),
    "v3 member not an id": v3(BODY_3.replace(b"a:1", b"a/1")),
    "v3 no members": v3(BODY_3.replace(int_field(2, 1), int_field(2, 2), 1)),
    "v3 ack quorum over write quorum": v3(BODY_3 + int_field(9, 2)),
    "v3 ack quorum 0": v3(BODY_3 + int_field(9, 0)),
    "v3 quorum missing": v3(BODY_3.removeprefix(int_field(1, 1))),
    "v3 negative length": v3(BODY_3.replace(int_field(3, 9), int_field(3, -9))),
    "v3 last entry -2": v3(BODY_3.replace(int_field(4, 4), int_field(4, -2))),
    "v2 not text": HEADER + b"2\n\0\0",
    "v2 numeric state": HEADER + b"2\n" + TEXT.replace(b"OPEN", b"1"),
    "v2 unknown state": HEADER + b"2\n" + TEXT.replace(b"OPEN", b"HALF"),
    "v2 no state": HEADER + b"2\n" + TEXT.replace(b"state: OPEN", b""),
    "v2 unclosed": HEADER + b"2\n" + TEXT[:-1],
    "v2 wrong bracket": HEADER + b"2\n" + TEXT[:-1] + b"}",
    "v2 bad escape": HEADER + b"2\n" + TEXT + rb' password: "\q"',
    "v2 octal too large": HEADER + b"2\n" + TEXT + rb' password: "\777"',
    "v2 surrogate": HEADER + b"2\n" + TEXT + rb' password: "\ud800"',
    "v2 open string": HEADER + b"2\n" + TEXT + b' password: "x',
    "v2 number as string": HEADER + b"2\n" + TEXT.replace(b"length: 0", b'length: "0"'),
    "v2 float": HEADER + b"2\n" + TEXT.replace(b"length: 0", b"length: 0.5"),
    "v2 too large": HEADER + b"2\n" + TEXT.replace(b"length: 0", b"length: 9223372036854775808"),
    "v2 very deep": HEADER + b"2\n" + b"x{" * 5000,
    "v2 many blanks": HEADER + b"2\n" + b" " * 20_000 + b"\0",
    "v2 no fragment": HEADER + b"2\n" + TEXT.removesuffix(SEGMENT_2),
    "v2 fragments fall": HEADER + b"2\n" + TEXT + SEGMENT_2,
    "v2 first fragment not 0": HEADER + b"2\n" + TEXT.replace(b"Id: 0", b"Id: 1"),
    "v1 short": HEADER + b"1\n1\n1",
    "v1 not a number": HEADER + b"1\nx\n1\n0\n0\ta:1\n",
    "v1 no fragment": HEADER + b"1\n1\n1\n0\n",
    "v1 after the end": HEADER + b"1\n1\n1\n0\n0\ta:1\n5\tCLOSED\n6\tb:1\n",
    "v1 not UTF-8": HEADER + b"1\n1\n1\n0\n0\t\xff\n",
    "v1 twice the same": HEADER + b"1\n1\n2\n0\n0\ta:1\ta:1\n",
}


@pytest.mark.parametrize("record", BAD.values(), ids=BAD.keys())
def test_bad_records_raise_one_typed_error(record: bytes) -> None:
    with pytest.raises(MalformedRecord) as error:
        parse(record)
    assert len(str(error.value)) < 300


def test_the_good_twins_of_the_bad_records_parse() -> None:
    for record in (v3(BODY_3), HEADER + b"2\n" + TEXT, HEADER + b"1\n1\n1\n0\n0\ta:1\n"):
        assert parse(record).fragments == (Fragment(0, ("a:1",)),)


records = st.sampled_from([bytes.fromhex(sample[1]) for sample in (NEW_V3, CLOSED_V3, RECOVERING_V2, CLOSED_V1)])


@given(records, st.data())
def test_damaged_records_raise_nothing_else(record: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(record)))
    end = data.draw(st.integers(start, min(len(record), start + 8)))
    damaged = record[:start] + data.draw(st.binary(max_size=8)) + record[end:]
    with contextlib.suppress(MalformedRecord):
        assert parse(serialise(parse(damaged))) == parse(damaged)


@given(
    st.sampled_from([b"", HEADER, HEADER + b"1\n", HEADER + b"2\n", HEADER + b"3\n", HEADER + b"3\n\x20"]), st.binary()
)
def test_arbitrary_bytes_raise_nothing_else(start: bytes, rest: bytes) -> None:
    with contextlib.suppress(MalformedRecord):
        parse(start + rest)


# Google's protobuf as a second opinion


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="second_opinion.proto", package="second", syntax="proto2")
    kinds = {"i32": 5, "i64": 3, "str": 9, "bytes": 12}
    messages = {
        "Segment": [("ensembleMember", 1, "str", 3), ("firstEntryId", 2, "i64", 2)],
        "Pair": [("key", 1, "str", 1), ("value", 2, "bytes", 1)],
        "Ledger": [
            ("quorumSize", 1, "i32", 2), ("ensembleSize", 2, "i32", 2), ("length", 3, "i64", 2),
            ("lastEntryId", 4, "i64", 1),
            ("state", 5, ".second.State", 2), ("segment", 6, ".second.Segment", 3),
            ("digestType", 7, ".second.Kind", 1),
            ("password", 8, "bytes", 1), ("ackQuorumSize", 9, "i32", 1), ("ctime", 10, "i64", 1),
            ("customMetadata", 11, ".second.Pair", 3), ("cToken", 12, "i64", 1),
        ],
    }  # fmt: skip
    for name, names in (("State", ["OPEN", "IN_RECOVERY", "CLOSED"]), ("Kind", ["CRC32", "HMAC", "CRC32C", "DUMMY"])):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(names, 1):
            enum.value.add(name=value, number=number)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            added: Any = message.field.add(name=field, number=number)
            added.label, added.type = label, kinds.get(kind, 14 if kind in (".second.State", ".second.Kind") else 11)
            if kind not in kinds:
                added.type_name = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("second.Ledger"))


Ledger = _message_class()


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    names = st.lists(
        st.from_regex(r"[a-z][a-z0-9._-]{0,20}:[0-9]{1,5}", fullmatch=True), min_size=size, max_size=size, unique=True
    )
    starts = sorted(draw(st.sets(st.integers(1, 2**62), max_size=3)))
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    version = draw(st.sampled_from([2, 3]))
    return LedgerMetadata(
        size, write_quorum, draw(st.integers(1, write_quorum)),
        tuple(Fragment(start, tuple(draw(names))) for start in [0, *starts]), state,
        draw(st.integers(-1, 2**63 - 1)) if closed else None, draw(st.integers(0, 2**63 - 1)) if closed else None,
        draw(st.sampled_from(DigestType)), draw(st.binary(max_size=30)),
        draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=20), max_size=3)),
        draw(st.none() | st.integers(-1, 2**63 - 1)),
        draw(st.integers(0, 2**63 - 1)) if version == 3 else 0, version,
    )  # fmt: skip


def as_message(metadata: LedgerMetadata) -> Any:
    assert metadata.digest_type is not None
    closed = metadata.last_entry is not None
    message = Ledger(
        quorumSize=metadata.write_quorum, ensembleSize=metadata.ensemble_size, ackQuorumSize=metadata.ack_quorum,
        length=metadata.length if closed else 0, lastEntryId=metadata.last_entry if closed else -1,
        state=int(metadata.state), digestType=int(metadata.digest_type), password=metadata.password,
    )  # fmt: skip
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry)
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    if metadata.creation_time_ms is not None:
        message.ctime = metadata.creation_time_ms
    if metadata.format_version == 3:
        message.cToken = metadata.creator_token
    return message


@given(ledgers())
def test_google_protobuf_reads_and_writes_the_same(metadata: LedgerMetadata) -> None:
    record, message = serialise(metadata), as_message(metadata)
    assert parse(record) == metadata
    body = record[len(HEADER) + 2 :]
    if metadata.format_version == 3:
        expected = message.SerializeToString()
        assert body == varint(len(expected)) + expected
    else:
        assert text_format.Parse(body, Ledger()) == message
        for printed in (text_format.MessageToString(message), text_format.MessageToString(message, as_one_line=True)):
            assert parse(HEADER + b"2\n" + printed.encode()) == metadata


def test_a_created_ledger_round_trips() -> None:
    metadata = created(3, 3, 2, [BK1, BK2, BK3], password=b"secret", creator_token=0x0123456789ABCDEF)
    assert serialise(metadata).hex() == NEW_V3[1]
