"""What a doctor mends: every fix that can be carried out is, and one that fails says why. Bookies' reports are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.bookie_kit import running

from buckram.bookie import report
from buckram.core.cluster.bookie_report import BookieReport, ExpiredToken, parse_report
from buckram.core.health.facts import Noted
from buckram.errors import MalformedRecord, MetadataUnavailable
from buckram.healing.cleanup import Fixable, mend
from buckram.health.gathering import Gatherer
from buckram.runtime.production import production_runtime


async def test_a_fix_that_fails_keeps_no_other_from_being_made() -> None:
    async def fails() -> str:
        raise MetadataUnavailable("away")

    async def works() -> str:
        return "removed it"

    one, other = Noted("leftovers", "a", ""), Noted("orphans", "b", "")
    assert await mend([Fixable(one, fails), Fixable(other, works)]) == ([(other, "removed it")], {"a": "away"})


async def test_descriptors_that_run_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as kit:
        gatherer = Gatherer(kit.metadata, production_runtime())
        try:
            assert "descriptors-short" not in {one.state.name for one in (await gatherer.look()).findings}
            monkeypatch.setattr(report, "current_limit", lambda: report.in_use() + 1)
            whys = {one.state.name: one.why for one in (await gatherer.look()).findings}
            assert "may open" in whys["descriptors-short"]
        finally:
            await gatherer.close()


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{", b'{"open_files": "many"}', b'{"collection": []}', b'{"expired_tokens": 7}'],
)
def test_what_is_no_report_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match="bookie b"):
        parse_report("b", value)


def test_a_report_of_a_later_release_is_read() -> None:
    assert parse_report("b", b'{"version": "9", "more": 1}') == BookieReport("9")


def test_a_report_is_read_as_it_was_written() -> None:
    said = BookieReport("0.2", wall_us=5, certificate="c", expired_tokens=(ExpiredToken("alice", 7),))
    assert parse_report("b", said.encode()) == said
