"""What convicts and what only makes suspicious; what is kept of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.cluster.conviction import Accused, Deed, Evidence, parse_accused, shown_for_another
from buckram.core.entries.entry import Digest
from buckram.errors import MalformedRecord
from buckram.types import DigestType

MAC = Digest(DigestType.MAC, b"secret")
SEALED = MAC.seal(7, 3, 2, 10, b"payload")


def test_the_sealed_entry_of_another_id_is_no_accident() -> None:
    assert shown_for_another(MAC, 7, 4, SEALED) == "it was answered with the sealed entry 3 of ledger 7"
    assert "of ledger 7" in shown_for_another(MAC, 8, 3, SEALED)
    assert "of ledger 7" in shown_for_another(MAC, 8, None, SEALED)


def test_what_was_asked_for_is_no_lie() -> None:
    assert shown_for_another(MAC, 7, 3, SEALED) == ""
    assert shown_for_another(MAC, 7, None, SEALED) == ""


@given(st.integers(0, len(SEALED) * 8 - 1))
def test_damage_is_no_lie(bit: int) -> None:
    damaged = bytearray(SEALED)
    damaged[bit // 8] ^= 1 << bit % 8
    assert shown_for_another(MAC, 7, 4, bytes(damaged)) == ""


@given(st.binary(max_size=80))
def test_any_bytes_are_no_lie(stored: bytes) -> None:
    assert shown_for_another(MAC, 7, 4, stored) == ""


@pytest.mark.parametrize("kind", [DigestType.CRC32C, DigestType.CRC32, DigestType.DUMMY])
def test_without_a_mac_nobody_is_convicted_by_bytes(kind: DigestType) -> None:
    digest = Digest(kind, b"")
    assert shown_for_another(digest, 7, 4, digest.seal(7, 3, 2, 10, b"payload")) == ""


def evidence(deed: Deed, incarnation: str = "i1", ledger: int = 1, at_us: int = 0) -> Evidence:
    return Evidence(deed, "b1", incarnation, ledger, 5, "seen", at_us)


def test_who_tells_no_incarnation_is_suspect_of_forgetting_only() -> None:
    assert evidence(Deed.UNSTORED).convicts
    assert not evidence(Deed.UNSTORED, "").convicts
    assert evidence(Deed.MIXED, "").convicts
    assert not evidence(Deed.DAMAGED).convicts


ROWS = st.builds(
    evidence, st.sampled_from(Deed), st.sampled_from(["", "i1", "i2"]), st.integers(0, 30), st.integers(0, 1000)
)


@given(st.lists(ROWS, max_size=40))
def test_a_record_is_bounded_and_keeps_its_verdict(rows: list[Evidence]) -> None:
    accused = Accused("b1").plus(rows)
    assert len(accused.evidence) <= 10
    assert accused.convicted == any(one.convicts for one in rows)
    assert accused.plus(rows) == accused
    assert parse_accused("k", accused.encode()) == accused


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"bookie": "b", "evidence": [{"deed": "?"}]}'])
def test_other_records_are_refused(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match="k: no record"):
        parse_accused("k", value)
