"""The bytes and paths of the underreplication tree are those that Apache's tools write and read."""

import pytest

from buckram.core.healing.records import (
    LAYOUT,
    TreePaths,
    check_layout,
    encode_date,
    encode_holder,
    encode_mark,
    ledger_of,
    parse_date,
    parse_delay,
    parse_holder,
    parse_mark,
    vote_number,
)
from buckram.errors import InvalidArgument, MalformedRecord

PATHS = TreePaths("/ledgers")


@pytest.mark.parametrize(
    ("ledger", "path"),
    [
        (5, "/0000/0000/0000/0005/urL0000000005"),
        (1234567890, "/0000/0000/4996/02d2/urL1234567890"),
        (4294967296, "/0000/0001/0000/0000/urL4294967296"),
        (792280518170312429, "/0afe/beef/0000/feed/urL792280518170312429"),
    ],
)
def test_paths_of_marks_and_locks(ledger: int, path: str) -> None:
    assert PATHS.mark(ledger) == "/ledgers/underreplication/ledgers" + path
    leaf = path.rpartition("/")[2]
    assert PATHS.lock(ledger) == "/ledgers/underreplication/locks/" + leaf
    assert ledger_of(leaf) == ledger


@pytest.mark.parametrize(
    "name", ["urL5", "urL000000000x", "url0000000005", "urL00000000005", "urL99999999999999999999"]
)
def test_names_that_are_no_ledgers_are_told_apart(name: str) -> None:
    assert ledger_of(name) is None


def test_a_ledger_id_out_of_range_has_no_path() -> None:
    with pytest.raises(InvalidArgument, match="-1"):
        PATHS.mark(-1)


def test_a_mark_reads_back_as_it_was_written() -> None:
    value = encode_mark(("10.0.0.1:3181",), 1700000000000)
    assert value == b'replica: "10.0.0.1:3181"\nctime: 1700000000000\n'
    mark = parse_mark("key", 7, value, 3)
    assert (mark.ledger, mark.replicas, mark.ctime_ms, mark.version) == (7, ("10.0.0.1:3181",), 1700000000000, 3)


def test_a_mark_may_name_nobody_and_have_no_date() -> None:
    mark = parse_mark("key", 7, encode_mark((), -1), 0)
    assert (mark.replicas, mark.ctime_ms) == ((), -1)


def test_a_mark_that_cannot_be_read_is_named() -> None:
    with pytest.raises(MalformedRecord, match=r"mark of ledger 7, /a/b.*delete"):
        parse_mark("/a/b", 7, b"\xff", 0)


def test_only_the_basic_layout_is_accepted() -> None:
    check_layout("key", LAYOUT)
    check_layout("key", b'version: 1 type: "BASIC"')
    for other in (b'type: "BASIC"\nversion: 2\n', b'type: "OTHER"\nversion: 1\n', b"\x00"):
        with pytest.raises(MalformedRecord):
            check_layout("key", other)


def test_holders_are_only_shown() -> None:
    assert parse_holder(encode_holder("b-1")) == "b-1"
    assert parse_holder(b"\xff\xff") == ""


def test_votes_are_ordered_by_number() -> None:
    assert vote_number("V_0000000012") == 12
    assert vote_number("V_-000000001") == -1
    assert vote_number("V_x") is None
    assert vote_number("other") is None


def test_the_delay_is_whole_seconds() -> None:
    assert parse_delay("key", b"300") == 300.0
    for bad in (b"", b"-1", b"1.5", b"\xff"):
        with pytest.raises(MalformedRecord, match="autorecovery delay"):
            parse_delay("key", bad)


def test_dates_of_checks_are_protobuf() -> None:
    assert encode_date(1700000000000).hex() == "0880d095ffbc31"
    assert parse_date(bytes.fromhex("0880d095ffbc31")) == 1700000000000
    assert parse_date(b"") == -1
    assert parse_date(encode_date(0)) == 0
