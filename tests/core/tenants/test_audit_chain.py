"""The chain of the audit trail: what is missing, was changed or put in is seen, and what cannot be seen is said."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.streams.records.batch import Record
from buckram.core.tenants.audit_trail import (
    MOST_BYTES,
    MOST_TEXT,
    AuditEvent,
    ChainCheck,
    Links,
    bounded,
    digest_of,
    shown,
)
from buckram.errors import InvalidArgument

HOSTILE = "shop\n2026-01-01T00:00:00.000000Z  token:root  delete  all\x1b[2J\x9b31m\u202e\u2028\ud800  done\\n \r"


def written(chain: str, count: int, bookie: str = "b1") -> list[bytes]:
    links = Links(chain)
    return [
        links.add(AuditEvent(number, "token:alice", "create", f"ledger {number}", bookie=bookie)).encode()
        for number in range(1, count + 1)
    ]


def checked(values: Sequence[bytes], *, from_start: bool = True) -> ChainCheck:
    check = ChainCheck(from_start=from_start)
    for offset, value in enumerate(values):
        check.see(offset, value)
    return check


def breaks(check: ChainCheck) -> list[tuple[str, int, int]]:
    return [(one.what, one.first, one.last) for chain in check.chains.values() for one in chain.breaks]


def test_chains_of_several_bookies_are_whole() -> None:
    one, other = written("c1", 5), written("c2", 3, "b2")
    check = checked([one[0], other[0], *one[1:3], other[1], *one[3:], other[2]])
    assert check.whole
    found = {chain.chain: (chain.bookie, chain.first, chain.last, chain.events) for chain in check.chains.values()}
    assert found == {"c1": ("b1", 1, 5, 5), "c2": ("b2", 1, 3, 3)}
    assert check.chains["c1"].digest == digest_of(one[-1])


@pytest.mark.parametrize("number", [2, 3, 4])
def test_an_event_that_is_missing_is_seen(number: int) -> None:
    values = written("c1", 5)
    del values[number - 1]
    assert breaks(checked(values)) == [("missing", number, number)]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_event_that_was_changed_is_seen(number: int) -> None:
    values = written("c1", 5)
    values[number - 1] = values[number - 1].replace(b"alice", b"bob  ")
    check = checked(values)
    assert not check.whole
    assert breaks(check) == [("changed", number, number + 1)]


def test_what_is_put_in_is_seen() -> None:
    values = written("c1", 5)
    forged = json.loads(values[2]) | {"principal": "token:root"}
    assert breaks(checked([*values, json.dumps(forged).encode()])) == [("changed", 3, 3)]
    assert breaks(checked([*values[:3], json.dumps(forged | {"number": 4}).encode(), *values[3:]])) == [
        ("changed", 3, 4),
        ("changed", 4, 4),
        ("changed", 4, 5),
    ]


def test_an_event_that_lost_its_place_leaves_a_hole() -> None:
    values = written("c1", 5)
    bare = {name: value for name, value in json.loads(values[2]).items() if name not in ("chain", "number", "before")}
    values[2] = json.dumps(bare).encode()
    check = checked(values)
    assert breaks(check) == [("missing", 3, 3)]
    assert (check.before_chain, check.unchained_later) == (1, 1)


def test_what_retention_removed_is_no_hole_and_what_nobody_removed_is_one() -> None:
    values = written("c1", 5)[2:]
    check = checked(values, from_start=False)
    assert check.whole
    assert (check.chains["c1"].first, check.chains["c1"].last) == (3, 5)
    assert breaks(checked(values)) == [("missing", 1, 2)]


def test_a_batch_that_was_written_twice_is_no_break() -> None:
    values = written("c1", 6)
    check = checked([*values[:4], *values])
    assert check.whole
    assert check.chains["c1"].repeated == 4


def test_events_of_earlier_releases_stand_before_the_chain() -> None:
    old = b'{"time_us": 5, "principal": "token:alice", "action": "delete", "what": "stream a/b", "result": "done"}'
    event = AuditEvent.parse(old)
    assert (event.what, event.chain, event.number, event.before) == ("stream a/b", "", 0, "")
    check = checked([old, old, *written("c1", 2)])
    assert check.whole
    assert (check.before_chain, check.unchained_later) == (2, 0)


def test_a_record_that_is_no_event_is_told_and_ends_nothing() -> None:
    check = checked([b"{", *written("c1", 2), b'{"time_us": 1e400}', b"[" * 100_000])
    assert not check.whole
    assert check.unreadable == [0, 3, 4]
    event = AuditEvent.of_record(Record(7, None, None, (), 5, 5, None))
    assert (event.time_us, event.action, event.what) == (5, "lost", "record 7")


def test_many_breaks_are_counted() -> None:
    check = checked(written("c1", 600)[::2])
    chain = check.chains["c1"]
    assert (len(chain.breaks), chain.more_breaks) == (100, 199)


def test_a_place_that_somebody_wrote_into_a_note_does_not_count() -> None:
    links = Links("c1")
    event = links.add(AuditEvent(1, "unix:root", "grant", "x", chain="c9", number=77, before="f" * 64))
    assert (event.chain, event.number, event.before) == ("c1", 1, "")


@pytest.mark.parametrize("place", [{"chain": "c"}, {"chain": "c", "number": -1}, {"number": 3}])
def test_half_a_place_is_none(place: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        AuditEvent.parse(json.dumps({"time_us": 1, **place}).encode())


@settings(max_examples=300)
@given(st.text(st.characters()) | st.text("\n\x1b\x9b \\\u202e\ud800a"))
def test_a_shown_text_is_one_word_of_a_line(text: str) -> None:
    said = shown(text)
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in said)
    assert "  " not in said
    assert said == said.strip(" ")
    said.encode()


def test_different_texts_are_shown_differently() -> None:
    assert shown("a\nb") == "a\\x0ab"
    assert shown("a\\x0ab") == "a\\\\x0ab"
    assert shown("a  b ") == "a \\x20b\\x20"
    assert shown("größer") == "größer"
    assert shown("\u202e\U000e0041") == "\\u202e\\U000e0041"


@settings(max_examples=100)
@given(st.sampled_from([HOSTILE, "x", "\U0001f600", "\x00", "\x7f", '"', "\\", "\ud800"]), st.integers(0, 3000))
def test_an_event_is_bounded_and_ascii_and_comes_back(text: str, times: int) -> None:
    long = text * times
    event = AuditEvent(2**55, long, long, long, long, long, long, long, long, "c" * 16, 2**60, "f" * 64)
    value = event.encode()
    assert len(value) <= MOST_BYTES
    assert value.isascii()
    assert all(32 <= byte < 127 for byte in value)
    assert AuditEvent.parse(value) == event.bounded()
    assert event.bounded().encode() == value


@settings(max_examples=300)
@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=MOST_TEXT)
    | st.integers(0, MOST_TEXT).map('"'.__mul__)
    | st.text(st.sampled_from('a"\\\x7f\n\u00e9'), max_size=MOST_TEXT)
)
def test_a_text_is_left_as_it_is_exactly_if_it_has_room(text: str) -> None:
    size = len(json.dumps(text).replace("\x7f", "\\u007f")) - 2
    assert (bounded(text) is text) == (size <= MOST_TEXT)


def test_an_event_keeps_its_stored_form_and_gives_it_to_no_other() -> None:
    event = AuditEvent(1, "token:alice", "create", "x" * 2000)
    value = event.encode()
    assert event.encode() is value
    placed = event.placed("c1", 7, "f" * 64)
    assert json.loads(placed.encode()) == json.loads(value) | {"chain": "c1", "number": 7, "before": "f" * 64}
    assert json.loads(replace(placed, what="y").encode())["what"] == "y"
    assert AuditEvent.parse(value) == event.bounded()
    assert repr(event) == repr(AuditEvent(1, "token:alice", "create", "x" * 2000))
    assert "_encoded" not in event.row()
