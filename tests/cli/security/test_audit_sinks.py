"""Copies of the audit trail outside of the cluster: what they hold, and what a sink that fails does not do."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.polling import until

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.cli.security import audit_writer as sinks
from buckram.cli.security.audit_writer import FileSink, SinkQueue, SyslogSink, copying, open_sink
from buckram.core.tenants.audit_trail import ChainCheck
from buckram.errors import ConfigError
from buckram.runtime.process.stats import MemoryStats
from buckram.runtime.production import production_runtime

HOSTILE = 'shop\n{"action": "delete"}\x1b[2J\x9b\x7f'
FAILURES, DROPPED = "buckram_bookie_audit_sink_failures_total", "buckram_bookie_audit_sink_lost_events_total"


def log() -> AuditLog:
    return AuditLog(production_runtime().clock, MemoryStats())


def note(events: AuditLog, *what: str) -> None:
    for one in what:
        events.add(events.event("token:alice", "delete", one))


def rows(path: Path) -> list[str]:
    return [json.loads(line)["what"] for line in path.read_bytes().splitlines() if line.startswith(b"{")]


async def test_a_file_has_each_event_on_a_line_with_its_place_in_the_chain(tmp_path: Path) -> None:
    events, path = log(), tmp_path / "audit.log"
    note(events, "before it was opened")
    sink = open_sink(f"file:{path}")
    assert sink is not None
    async with copying(events, sink):
        note(events, HOSTILE)
        await until(lambda: path.exists() and len(rows(path)) == 2)
        os.rename(path, tmp_path / "audit.log.1")
        note(events, "after it was renamed", "the last one")
    assert rows(tmp_path / "audit.log.1") == ["before it was opened", HOSTILE]
    assert rows(path) == ["after it was renamed", "the last one"]
    both = (tmp_path / "audit.log.1").read_bytes() + path.read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in both)
    check = ChainCheck(from_start=True)
    for offset, line in enumerate(both.splitlines()):
        check.see(offset, line)
    assert check.whole
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_stays_apart(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"what": "wh')
    FileSink(str(path)).write([b'{"what": "a"}', b'{"what": "b"}'])
    assert path.read_bytes() == b'{"what": "wh\n{"what": "a"}\n{"what": "b"}\n'


async def test_a_sink_that_fails_is_told_once_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events, folder = log(), tmp_path / "later"
    stats, path = events.stats, folder / "audit.log"
    assert isinstance(stats, MemoryStats)
    with caplog.at_level(logging.WARNING, "buckram.audit"):
        async with copying(events, FileSink(str(path))):
            note(events, "a")
            await until(lambda: stats.values()[FAILURES] >= 2)
            note(events, "b")
            assert [one.what for one in events.batch(9)] == ["a", "b"]
            folder.mkdir()
            await until(lambda: path.exists() and rows(path) == ["a", "b"])
    assert stats.values()[DROPPED] == 0
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "events of the audit trail are not copied to file",
        "events of the audit trail are copied to file",
    ]


async def test_a_sink_that_hangs_delays_nothing_and_is_left_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "_STOP_S", 0.01)
    monkeypatch.setattr(sinks, "MOST_WAITING", 3)
    begun, go = threading.Event(), threading.Event()

    class Hanging:
        name = "hangs"

        def write(self, lines: Sequence[bytes]) -> None:
            begun.set()
            go.wait()

    events = log()
    try:
        async with copying(events, Hanging()):
            note(events, "a")
            await until(begun.is_set)
            note(events, *"bcdef")
            assert len(events) == 6
    finally:
        go.set()
    stats = events.stats
    assert isinstance(stats, MemoryStats)
    assert stats.values()[DROPPED] == 2
    assert "3 events of the audit trail were not copied to hangs" in caplog.text


async def test_syslog_gets_each_event_as_a_message(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        daemon.settimeout(5)
        events = log()
        note(events, HOSTILE, "b")
        sink = open_sink(f"syslog:{path}")
        assert isinstance(sink, SyslogSink)
        async with copying(events, sink):
            pass
        for what in (HOSTILE, "b"):
            head, _, text = daemon.recv(65536).partition(b" ")
            assert head == b"<85>buckram-audit:"
            assert json.loads(text)["what"] == what
            assert all(32 <= byte < 127 for byte in text)


async def test_a_daemon_that_is_away_is_tried_again(tmp_path: Path) -> None:
    copies, events = SinkQueue(SyslogSink(str(tmp_path / "log")), MemoryStats()), log()
    copies.add(events.event("token:alice", "delete", "a"))
    assert not await copies.write()
    assert len(copies) == 1


@pytest.mark.parametrize("setting", ["audit.log", "file:", "file:audit.log", "file", "tcp:x", "syslog", "file:/a\0b"])
def test_other_settings_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="audit_sink"):
        open_sink(setting)


def test_no_setting_is_no_sink() -> None:
    assert open_sink("") is None
