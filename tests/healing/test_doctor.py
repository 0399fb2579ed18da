"""What the doctor makes of bookies' own reports: full disks, few descriptors, a mix of releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.bookie_kit import STORE, HeldDisk, Kit, memory_metadata, running

from buckram.bookie import report
from buckram.client.client import connect
from buckram.core.cluster.bookie_report import BookieReport, parse_report
from buckram.errors import MalformedRecord
from buckram.healing.doctor import Patient, ask_patients, findings_of_bookies
from buckram.types import BookieSet

NOBODY = BookieSet({}, {})


async def found(kit: Kit) -> dict[str, str]:
    async with connect(kit.metadata) as client:
        registered = await kit.metadata.bookies()
        findings = await findings_of_bookies(client, registered, await ask_patients(client, registered))
    return {one.problem.what: one.problem.why for one in findings}


async def test_descriptors_that_run_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as kit:
        assert await found(kit) == {}
        monkeypatch.setattr(report, "current_limit", lambda: report.in_use() + 1)
        assert "may be open" in (await found(kit))["descriptors"]


async def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    disk.free_bytes = 1 << 20
    least = replace(STORE, reserved_bytes=2 << 20, writable_again_bytes=3 << 20)
    async with running(tmp_path, disk=disk, store=least) as kit:
        assert kit.bookie.state == "readonly"
        assert "nobody asked it to" in (await found(kit))["bookie read-only"]


def patient(bookie: str, version: str, *, connections: int = 0) -> Patient:
    return Patient(bookie, False, BookieReport(version, connections=connections, most_connections=10))


async def test_bookies_are_compared_with_each_other() -> None:
    patients = [
        patient("a", "0.1"),
        patient("b", "0.2"),
        patient("c", "0.2", connections=9),
        Patient("apache:3181", False),
    ]
    async with connect(await memory_metadata()) as client:
        findings = await findings_of_bookies(client, NOBODY, patients)
        same = await findings_of_bookies(client, NOBODY, [patient("a", "0.2"), patient("b", "0.2")])
    assert [(one.problem.what, one.problem.where) for one in findings] == [
        ("connections", "c"),
        ("versions", "0.1: a; 0.2: b, c"),
    ]
    assert same == []
    assert all(one.fix is None for one in findings), "nothing of this is mended without people"


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'{"open_files": "many"}', b'{"collection": []}'])
def test_what_is_no_report_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match="bookie b"):
        parse_report("b", value)


def test_a_report_of_a_later_release_is_read() -> None:
    assert parse_report("b", b'{"version": "9", "more": 1}') == BookieReport("9")
