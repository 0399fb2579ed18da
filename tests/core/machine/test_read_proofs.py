"""What an acknowledgement proves."""

from __future__ import annotations

from buckram.core.machine.read_proofs import Freshness, Proofs


def test_a_read_is_served_by_a_record_sent_after_it_arrived() -> None:
    proofs: Proofs[str] = Proofs()
    proofs.arrived("early", 5)
    assert proofs.lacks_record(5)
    assert not proofs.lacks_record(6)
    proofs.arrived("late", 6)
    assert proofs.lacks_record(6)
    assert proofs.applied(5) == []
    assert proofs.applied(6) == ["early"]
    assert len(proofs) == 1
    assert proofs.applied(8) == ["late"]
    assert not proofs.lacks_record(8)


def test_reads_that_nothing_proves_any_more_fail() -> None:
    proofs: Proofs[str] = Proofs()
    proofs.arrived("a", 1)
    proofs.arrived("b", 1)
    assert proofs.fail() == ["a", "b"]
    assert proofs.applied(10) == []


def test_freshness_never_goes_back() -> None:
    freshness = Freshness()
    assert freshness.age(10.0) is None
    freshness.confirmed(8.0)
    freshness.confirmed(7.0)
    assert freshness.age(10.0) == 2.0
