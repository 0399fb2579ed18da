"""Backups by a policy, made by two processes that die, sleep, and lose their sessions meanwhile.

Not here: backups that somebody asks for (`copying.py`).
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from buckram.cluster import Client
from buckram.core.db.backups import decode_kept, directory_of
from buckram.core.streams.policy import merged
from buckram.errors import BuckramError
from buckram.state.db.backups import Backups
from buckram.streams.maintain.janitor_report import JanitorReport
from buckram.streams.shared.metadata import StreamStore
from buckram.types import KeyValue
from simulator.database.rules import Rules
from simulator.database.stage import Stage
from simulator.engine.world import Died
from simulator.machine.faults import NAME

PLACE = "nightly"
POLICY = {"backup_every_s": 0.5, "backup_to": PLACE, "backup_keep": 3}
_NO_CRASH = 1 << 60
_RECORD, _CLAIM = "/backup", "/backing-up"
"""Ends of the keys that have the record of a database's backups, and the claim of the process that makes one."""


class BackupWatch:
    """Checks each change of the record of backups, and of claims. A MetadataObserver."""

    def __init__(self, rules: Rules, place: Path) -> None:
        self._rules, self._report, self._place = rules, rules.report, place
        self.claimed: dict[bytes, str] = {}
        """The host of each claim's value."""

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None:
        if new is None and old is not None and key.endswith(_CLAIM) and bytes(old.value) in self.claimed:
            owner = self.claimed[bytes(old.value)]
            other = who in self.claimed.values() and who != owner
            self._report.check("backups", not other, "{} removes the claim of {}", who, owner)
        elif new is not None and key.endswith(_RECORD):
            self._recorded(who, key, old, new)

    def _recorded(self, who: str, key: str, old: KeyValue | None, new: KeyValue) -> None:
        before = decode_kept(key, old.value).newest if old is not None else None
        newest = decode_kept(key, new.value).newest
        if newest is None or newest == before:
            return
        self._report.situation("a backup was recorded")
        goes_on = before is None or newest.offset >= before.offset
        self._report.check("backups", goes_on, "{} records {} after {}", who, newest, before)
        path = Path(directory_of(str(self._place), NAME)) / newest.file
        wanted = b"".join(self._rules.reference.state_before(newest.offset).values())
        good = path.exists() and path.read_bytes() == wanted
        self._report.check("backups", good, "{} records {}, which has other pages", who, newest)

    def key_conflict(self, who: str, key: str) -> None:
        """No rule is about it."""

    def reply_lost(self, who: str, key: str) -> None:
        """No rule is about it."""

    def unread_version(self, who: str, key: str, version: int) -> None:
        """Do nothing: the judge checks this (S11)."""


class JanitorActor:
    """One process that makes the backups of the policy."""

    def __init__(self, stage: Stage, watch: BackupWatch, place: Path, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host
        self.rng = random.Random(f"{stage.machines.seed} {host}")
        self._watch, self._place = watch, place

    async def run(self) -> None:
        while not self.stage.over:
            try:
                client = await self.world.client(self.host)
                await self.world.join(self.world.processes[self.host], self._live(client), "janitor")
            except (BuckramError, Died) as error:
                self.world.trace.note(self.host, f"ends: {error!r}")
            await asyncio.sleep(self.rng.random())

    async def _live(self, client: Client) -> None:
        backups = Backups(client, {PLACE: str(self._place)}, self.stage.directory)
        self._watch.claimed[backups._nonce] = self.host
        streams, process = StreamStore(client.services.store), self.world.processes[self.host]
        try:
            while not self.stage.over:
                await asyncio.sleep(self.rng.random() * 0.8)
                trouble = self.rng.random()
                if trouble < 0.1:
                    process.crash_after(int(self.rng.random() * 200))
                elif trouble < 0.6:
                    self.world.loop.create_task(self._sleep(), context=self.world.loop.world.context)
                head = (await streams.read(NAME)).head
                report = JanitorReport()
                now = client.services.clocks.moment().certain
                await backups.look(NAME, head, merged(head.policy), now)
                await backups.carry_out(report)
                for problem in report.problems:
                    self.world.trace.note(self.host, problem)
        finally:
            process.crash_after(_NO_CRASH)
            await client.close()

    async def _sleep(self) -> None:
        """Stop the process soon, often for longer than its session lives."""
        await asyncio.sleep(self.rng.random() * 0.06)
        process = self.world.processes[self.host]
        if self.stage.over or process.dead or process.paused:
            return
        self.world.pause(self.host)
        if self.rng.random() < 0.6:
            self.world.sessions[self.host].expire()
        await asyncio.sleep(self.rng.random())
        self.world.resume(self.host)


__all__ = ["PLACE", "POLICY", "BackupWatch", "JanitorActor"]
