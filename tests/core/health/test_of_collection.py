"""Bytes that wait to be removed are told with what they are, where they are much of what a bookie has."""

from __future__ import annotations

import pytest

from buckram.core.cluster.bookie_report import BookieReport, Collected, Keeps, KeptGarbage
from buckram.core.health.bookie_states import WAITING_BYTES, waiting_bytes
from buckram.core.health.facts import BookieFacts, Facts
from buckram.core.health.findings import findings

GB = WAITING_BYTES


def collected(*kept: tuple[str, int | None]) -> Collected:
    return Collected(0, 0, 0, tuple(KeptGarbage(kind, "", size, 1) for kind, size in kept))


def facts(*kept: tuple[str, int | None], total: int | None = 100 * GB, free: int | None = 80 * GB) -> Facts:
    report = BookieReport("0.2", collection=collected(*kept))
    bookie = BookieFacts("b", "writable", True, total_bytes=total, free_bytes=free, report=report)
    return Facts(bookies=(bookie,))


def test_what_waits_is_summed_up_by_its_reason_and_dead_bytes_in_files_are_no_part_of_it() -> None:
    found = waiting_bytes(
        collected(
            (Keeps.BRAKE, 5), (Keeps.RECORDED, 7), (Keeps.BRAKE, 4), (Keeps.NOT_SEALED, 100), (Keeps.UNTRUSTED, None)
        )
    )
    assert found.by_kind == ((Keeps.BRAKE, 9), (Keeps.RECORDED, 7))
    assert found.total == 16
    assert str(found) == "9 bytes absent without a record, more than go unasked, 7 bytes recorded as deleted"
    assert waiting_bytes(None).total == 0
    assert waiting_bytes(collected(("of a later release", 9))).total == 0


@pytest.mark.parametrize(
    ("waits", "total", "free", "told"),
    [
        (4 * GB, 100 * GB, 80 * GB, False),  # a fifth of the 20 GB that are used
        (4 * GB + 1, 100 * GB, 80 * GB, True),
        (GB - 1, 10 * GB, 9 * GB, False),
        (GB, 10 * GB, 9 * GB, True),
        (GB, None, None, True),
        (4 * GB, 100 * GB, 99 * GB, True),  # it freed some since it counted
    ],
)
def test_a_warning_is_given_for_more_than_a_fifth(waits: int, total: int | None, free: int | None, told: bool) -> None:
    found = findings(facts((Keeps.SECOND_LOOK, waits), total=total, free=free))
    assert [(one.state.name, one.where) for one in found] == ([("waiting-bytes", "b")] if told else [])
    if told:
        assert f"{waits} bytes absent without a record, kept until a second look" in found[0].why
        assert "`buckram bookie show b`" in found[0].do
