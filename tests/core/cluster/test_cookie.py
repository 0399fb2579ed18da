"""Cookie text and its comparison.

Who is who over time: every combination of what a bookie knows and what the store says, row by row.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.cluster.cookie import (
    Cookie,
    Standing,
    check_cookie,
    decide,
    decode_dirs,
    encode_dirs,
    next_generation,
    parse_cookie,
    serialise_cookie,
    why_removed,
    why_replaced,
)
from buckram.core.cluster.store_history import Judgement, WitnessStatement, encode_statement, parse_statement
from buckram.errors import MalformedRecord, WrongCookie

PUBLISHED = bytes.fromhex(
    "350a626f6f6b6965486f73743a202231302e302e302e313a33313831220a6a6f75726e616c4469723a20222f646174612f6a6f75726e616c22"
    "0a6c6564676572446972733a2022325c742f646174612f6c315c742f646174612f6c32220a696e7374616e636549643a202230633961326534"
    "652d356132662d346430652d396133622d306436643562366137633831220a"
)
COOKIE = Cookie(
    "10.0.0.1:3181", "/data/journal", encode_dirs(["/data/l1", "/data/l2"]), "0c9a2e4e-5a2f-4d0e-9a3b-0d6d5b6a7c81"
)


def test_the_published_sample_both_ways() -> None:
    assert serialise_cookie(COOKIE) == PUBLISHED
    assert parse_cookie(PUBLISHED) == COOKIE
    assert decode_dirs(COOKIE.ledger_dirs) == ["/data/l1", "/data/l2"]


def test_older_versions_are_read_and_the_current_one_is_written() -> None:
    three = parse_cookie(b"3\nhost:1\n/j\n1\t/l\n")
    assert three == Cookie("host:1", "/j", "1\t/l", layout_version=3)
    four = parse_cookie(b'4\nbookieHost: "host:1" journalDir: "/j" ledgerDirs: "1\\t/l" instanceId: "x"')
    assert four == Cookie("host:1", "/j", "1\t/l", "x", layout_version=4)
    for cookie in (three, four):
        assert parse_cookie(serialise_cookie(cookie)) == replace(cookie, layout_version=5)


def test_empty_optional_strings_read_as_absent() -> None:
    text = b'5\nbookieHost: "h" journalDir: "" ledgerDirs: "0" instanceId: "" indexDirs: ""'
    assert parse_cookie(text) == Cookie("h", "", "0")
    indexed = replace(COOKIE, index_dirs="1\t/i")
    assert parse_cookie(serialise_cookie(indexed)) == indexed


BAD = [
    b"", b"\n", b"6\n", b"2\n", b"five\n", b"5", b"5\n", b"3\nhost", b"3\n\xff\n\n\n", b"5\n\0", b'5\nbookieHost: "h"',
    b'5\nbookieHost: 1 journalDir: "" ledgerDirs: ""', b'5\nbookieHost: "\\377" journalDir: "" ledgerDirs: ""',
    b"0" * 100, PUBLISHED[:-2],
]  # fmt: skip


@pytest.mark.parametrize("record", BAD)
def test_bad_cookies_raise_one_typed_error(record: bytes) -> None:
    with pytest.raises(MalformedRecord, match="cookie"):
        parse_cookie(record)


@given(st.sampled_from([b"", b"3\n", b"4\n", b"5\n", PUBLISHED, PUBLISHED[:60]]), st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing_else(start: bytes, rest: bytes) -> None:
    with contextlib.suppress(MalformedRecord):
        parse_cookie(start + rest)


text = st.text(max_size=12)


@given(text, text, st.lists(text.filter(lambda name: "\t" not in name), max_size=3), st.none() | text)
def test_cookies_round_trip(host: str, journal: str, directories: list[str], instance: str | None) -> None:
    cookie = Cookie(host, journal, encode_dirs(directories), instance)
    assert parse_cookie(serialise_cookie(cookie)) == replace(cookie, instance_id=instance or None)
    assert decode_dirs(cookie.ledger_dirs) == directories


def test_a_cookie_matches_itself_in_any_version() -> None:
    check_cookie(COOKIE, COOKIE)
    check_cookie(COOKIE, replace(COOKIE, layout_version=4))
    check_cookie(COOKIE, replace(COOKIE, index_dirs=COOKIE.ledger_dirs))


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (replace(COOKIE, bookie_host="other:1"), "bookie id"),
        (replace(COOKIE, journal_dir="/other"), "journal"),
        (replace(COOKIE, ledger_dirs=encode_dirs(["/data/l2", "/data/l1"])), "ledger directories"),
        (replace(COOKIE, index_dirs="1\t/i"), "index directories"),
        (replace(COOKIE, instance_id="another"), "instance"),
        (replace(COOKIE, instance_id=None), "instance"),
    ],
)
def test_a_foreign_cookie_is_named(stored: Cookie, named: str) -> None:
    with pytest.raises(WrongCookie, match=named):
        check_cookie(COOKIE, stored)


def test_expansion_allows_more_directories_and_nothing_else() -> None:
    grown = replace(COOKIE, ledger_dirs=encode_dirs(["/data/l2", "/new", "/data/l1"]))
    with pytest.raises(WrongCookie):
        check_cookie(grown, COOKIE)
    check_cookie(grown, COOKIE, allow_expansion=True)
    with pytest.raises(WrongCookie):
        check_cookie(COOKIE, grown, allow_expansion=True)
    with pytest.raises(WrongCookie, match="journal"):
        check_cookie(replace(grown, journal_dir="/other"), COOKIE, allow_expansion=True)


MINE = WitnessStatement("mine", 4, 17, 4096, 3, "third", "n1", 2, 0)
OTHER = replace(MINE, incarnation="other")
TRUSTED, ADOPTED, BEHIND = Judgement(), Judgement(adopt=True), Judgement("it went back")
MEMBER, RETURNING, REPLACED, REMOVED = Standing.MEMBER, Standing.RETURNING, Standing.REPLACED, Standing.REMOVED


def other(generation: int, epoch: int = 3) -> WitnessStatement:
    return replace(OTHER, generation=generation, epoch=epoch)


@pytest.mark.parametrize(("known", "found", "past", "has_cookie", "restored", "standing", "suspicion"), [
    # The id is its own, or nobody's.
    (MINE, MINE, TRUSTED, True, False, MEMBER, ""),
    (None, MINE, TRUSTED, True, False, MEMBER, ""),
    (None, None, TRUSTED, True, False, MEMBER, ""),
    (MINE, None, BEHIND, True, False, MEMBER, "went back"),
    (MINE, replace(MINE, generation=9), TRUSTED, True, False, MEMBER, ""),
    # A later incarnation has it, whatever else is wrong with the store.
    (MINE, other(3), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(3), ADOPTED, True, False, REPLACED, ""),
    (MINE, other(3), BEHIND, True, False, REPLACED, ""),
    (MINE, other(3), BEHIND, False, True, REPLACED, ""),
    (MINE, other(3), TRUSTED, False, False, REPLACED, ""),
    (None, other(1), TRUSTED, True, False, REPLACED, ""),
    # One of earlier releases, without a generation: who wrote last has the id.
    (replace(MINE, generation=0), other(0), TRUSTED, True, False, REPLACED, ""),
    (None, other(0), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(0), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(0), BEHIND, True, False, MEMBER, "went back"),
    (MINE, other(0), ADOPTED, True, False, MEMBER, ""),
    # Two claims are equal: the store decides, if it is believed.
    (MINE, other(2), TRUSTED, True, False, REPLACED, ""),
    (MINE, other(2), BEHIND, True, False, MEMBER, "went back"),
    # An earlier one has it: the store went back. Where an operator accepted that, the later one takes the id again,
    (MINE, other(1), TRUSTED, True, False, MEMBER, "generation 1"),
    (MINE, other(1), BEHIND, True, False, MEMBER, "went back"),
    (MINE, other(1), ADOPTED, True, False, MEMBER, ""),
    # unless the earlier one was let in after that.
    (MINE, other(1, epoch=4), ADOPTED, True, False, REPLACED, ""),
    # No cookie: it was taken out, unless a restore lost the cookie, or the store is not believed.
    (MINE, MINE, TRUSTED, False, False, REMOVED, ""),
    (MINE, MINE, ADOPTED, False, False, REMOVED, ""),
    (None, None, TRUSTED, False, False, REMOVED, ""),
    (MINE, MINE, BEHIND, False, False, MEMBER, "went back"),
    (MINE, None, BEHIND, False, True, RETURNING, "went back"),
    (MINE, other(1), BEHIND, False, True, RETURNING, "went back"),
])  # fmt: skip
def test_who_it_is(
    known: WitnessStatement | None,
    found: WitnessStatement | None,
    past: Judgement,
    has_cookie: bool,
    restored: bool,
    standing: Standing,
    suspicion: str,
) -> None:
    verdict = decide("mine", known, found, past, has_cookie=has_cookie, restored=restored)
    assert verdict.standing is standing
    assert suspicion in verdict.suspicion
    assert bool(suspicion) == bool(verdict.suspicion)
    assert verdict.out is (standing in (REPLACED, REMOVED))


@pytest.mark.parametrize(("known", "found", "generation"), [
    (None, None, 1),
    (None, other(0), 1),
    (None, other(4), 5),
    (MINE, MINE, 2),
    (MINE, None, 2),
    (replace(MINE, generation=0), replace(MINE, generation=0), 1),
    (MINE, replace(MINE, generation=3), 3),
    (MINE, other(1), 3),
])  # fmt: skip
def test_the_generation_grows_with_each_take_over(
    known: WitnessStatement | None, found: WitnessStatement | None, generation: int
) -> None:
    assert next_generation("mine", known, found) == generation


def test_keys_of_earlier_releases_have_no_generation() -> None:
    record = b'{"incarnation": "i", "starts": 1, "seq": 2, "offset": 3, "epoch": 1, "restore": "r", "nonce": "n"}'
    assert parse_statement("key", record) == WitnessStatement("i", 1, 2, 3, 1, "r", "n", 0, 0)
    assert parse_statement("key", encode_statement(MINE)) == MINE


def test_words_name_both_incarnations_when_and_what_to_do() -> None:
    text = why_replaced("b1", "mine", replace(other(3), since=86_400))
    for part in (
        "b1",
        "mine",
        "other",
        "generation 3",
        "1970-01-02 00:00:00 UTC",
        "--id NEW-ID",
        "buckram bookie rejoin",
    ):
        assert part in text
    assert " at 19" not in why_replaced("b1", "mine", other(3))
    for part in ("b1", "mine", "decommission", "accept-restore", "--id NEW-ID"):
        assert part in why_removed("b1", "mine")
