"""The janitor of streams: it carries out retention and offload, frees space, and removes what crashes left behind.

It deletes what a policy names and what can never be listed again, and nothing else. Several janitors may run at once,
and one may crash at any step. The ledgers of a writer that seems to be gone are checked again after a pause, because a
writer may have lost its session for a moment only. While the time is in doubt, nothing is deleted by age (T2). Not
here: what a policy asks for, and deleting segments (`truncate.py`), finding orphans (`orphans.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from buckram.client.ledger_client import LedgerClient
from buckram.core.cluster.believed_time import Jump, agreed_jumps, held_back
from buckram.core.streams.compaction import small_runs
from buckram.core.streams.external.history import OffloadPlaces
from buckram.core.streams.metadata.changes import HeadStep, swept
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.metadata.purposes import purpose_of
from buckram.core.streams.metadata.snapshots import is_published
from buckram.core.streams.metadata.transactions import decided
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.errors import (
    AccessRefused,
    ConfigError,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    NoSuchNamespace,
    NoSuchStream,
    ReadFailed,
    VersionConflict,
    WriteFailed,
    WriterExists,
)
from buckram.metadata.records.recorded_time import read_times
from buckram.streams.maintain.compaction import join
from buckram.streams.maintain.delete import delete_incomplete, delete_stream, drop_leftovers
from buckram.streams.maintain.janitor_report import JanitorReport, OnReport, OnWaiting, combine_reports, note_problem
from buckram.streams.maintain.offload import asks_for_offload, offload_by_policy
from buckram.streams.maintain.orphans import children_of, delete_orphan, find_orphans
from buckram.streams.maintain.resting import RestingStreams, listed_heads, rest_s
from buckram.streams.maintain.truncate import all_older, apply_retention, dead_rows, is_lease_held, trim
from buckram.streams.shared.ledgers import (
    JOINED,
    OBJECT,
    RETIRED,
    SEGMENT,
    SNAPSHOT,
    Intent,
    discard,
    is_stale,
    let_go,
    list_intents,
)
from buckram.streams.shared.locations import confined
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.streams.shared.namespaces import NamespaceInfo, Namespaces
from buckram.streams.shared.ownership import opened
from buckram.streams.write.opening import open_writer
from buckram.types import EntryId, KeyValue, LedgerId

_US = 1_000_000
_INTENTS = 1000
_GARBAGE_AT_ONCE = 64
_LEFTOVERS_EVERY = 6
"""Passes from one that looks for data of deleted streams to the next, where streams at rest are passed over."""
BY_AGE = "what goes by age"


@dataclass(frozen=True, slots=True)
class JanitorSettings:
    """Settings of a janitor; all times in seconds."""

    grace_s: float = 3.0
    """Pause between the two checks that decide that a writer is gone."""
    bulk_age_s: float = 86_400.0
    """Time without publishing or making a ledger after which an application is taken for dead, and its unpublished
    ledgers are discarded. Of an active application only ledgers of decided steps are discarded, at any age."""
    retired_s: float = 3600.0
    """Time that ledgers of compacted or offloaded segments are kept, because readers may still use them."""
    seal_s: float = 60.0
    """Time with a free lease and no growth of the open segment after which a stream is sealed: its writer died, and the
    seal makes its last records readable."""
    join_at: int = 16
    """Number of adjacent small segments from which they are joined into one, which takes fewer ledgers."""
    orphans: bool = True
    """True to read the metadata of every ledger and delete orphans, too."""


class KeepsBackups(Protocol):
    """Interface of the part that makes backups of databases (`state/db/backups.py`)."""

    async def look(self, name: StreamName, head: Head, policy: Policy, now: int | None) -> None:
        """See whether a backup of a stream is due. `now`: the time for its age, microseconds UTC, None in doubt."""
        ...

    async def carry_out(self, report: JanitorReport) -> None:
        """Make the backups that are due. Failures are reported."""
        ...


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A ledger of a writer that seems to be gone; it is discarded if the second check confirms that."""

    name: StreamName
    uid: str
    epoch: int
    intent: Intent


@dataclass(slots=True)
class _Pass:
    """One pass over all streams, and what it has found so far."""

    report: JanitorReport
    whole: bool
    uids: dict[str, None] = field(default_factory=dict)
    """Of the streams that exist."""
    suspects: list[_Suspect] = field(default_factory=list)
    stopped: list[tuple[StreamName, str]] = field(default_factory=list)
    """Forks that are not complete and have no maker, with their uids."""
    complete: bool = True
    """False after a head could not be read."""


@dataclass(frozen=True, slots=True)
class _Quiet:
    """The open segment of a stream whose lease is free: its ledger, its LAC, and since when both are so (loop time)."""

    ledger: LedgerId
    last: EntryId
    since: float


class Janitor:
    """Cleans all streams of a cluster: `clean` is one pass, `run` repeats it.

    It remembers since when each stream seems to have no writer. A single pass cannot decide that such a stream is
    abandoned; `finish` waits and makes a second pass. It owns no task.
    """

    def __init__(
        self,
        client: LedgerClient,
        settings: JanitorSettings | None = None,
        backups: KeepsBackups | None = None,
        offload_places: OffloadPlaces | None = None,
    ) -> None:
        """`backups`: makes the backups of databases that policies ask for; without it, this janitor makes none.

        `offload_places`: the allowed locations of history, because users who change streams set policies; None:
        anywhere, which is for clusters where every user may do what this process may."""
        self._client, self._backups, self._places = client, backups, offload_places
        self._streams = StreamStore(client.services.store)
        self._namespaces = Namespaces(self._streams)
        self._settings = settings or JanitorSettings()
        self._policies: dict[str, Mapping[str, Any]] = {}
        self._in_doubt = True
        """True if the time was in doubt at the start of this pass."""
        self._jumps: tuple[Jump, ...] = ()
        """Jumps of the believed time: anything stamped in the doubt before one of them is younger than its stamp says.
        """
        self._quiet: dict[str, _Quiet] = {}
        """Streams with an open segment and a free lease, by uid."""
        self._resting, self._passes = RestingStreams(), 0

    async def run(self, interval_s: float, on_report: OnReport = lambda _: None) -> None:
        """Clean, report and pause, for ever; passes after the first pass over streams at rest.

        Only InvariantViolation and HandleClosed end it.
        """
        while True:
            on_report(await self.clean(whole=False))
            await asyncio.sleep(interval_s)

    @property
    def undecided(self) -> int:
        """The number of streams that seemed to have no writer in the last pass; a pass after `seal_s` may seal them."""
        return len(self._quiet)

    async def finish(self, on_waiting: OnWaiting = lambda _: None) -> JanitorReport:
        """Clean, and if streams seem to have no writer, wait for `seal_s` and clean again.

        This is for a janitor that does not run permanently.
        """
        report = await self.clean()
        if not self.undecided:
            return report
        on_waiting(self.undecided)
        await asyncio.sleep(self._settings.seal_s)
        return combine_reports(report, await self.clean(orphans=False))

    async def clean(self, *, orphans: bool | None = None, whole: bool = True) -> JanitorReport:
        """Make one pass and report. A failure at one stream is reported and does not stop the pass.

        `orphans` replaces the setting of this name for this pass. `whole`: also look at streams where the last look
        found nothing to do (`resting.py`); one of many passes need not.
        """
        self._client.services.guard()
        with self._confined("", ""):
            report = await self._clean(self._settings.orphans if orphans is None else orphans, whole)
        if self._backups is not None:
            await self._backups.carry_out(report)
        return report

    async def _clean(self, orphans: bool, whole: bool) -> JanitorReport:
        report = JanitorReport()
        this = _Pass(report, whole)
        self._policies.clear()
        await self._check_clocks(report)
        # Data is listed before the heads, so data that belongs to no head afterwards is of a deleted stream.
        data: list[str] = []
        if whole or self._passes % _LEFTOVERS_EVERY == 0:
            data = [uid async for uid in children_of(self._streams, self._streams.layout.all_data)]
        self._passes += 1
        async for name, found in listed_heads(self._streams):
            await self._visit(name, found, this)
        self._quiet = {uid: quiet for uid, quiet in self._quiet.items() if uid in this.uids}
        self._resting.keep(this.uids)
        # Without one of the heads one cannot tell which data belongs to no stream.
        leftovers = [uid for uid in data if uid not in this.uids] if this.complete else []
        half_deleted = await self._half_deleted(report)
        if this.suspects or leftovers or half_deleted or this.stopped:
            await asyncio.sleep(self._settings.grace_s)
            await self._check_again(this.suspects, leftovers, half_deleted, report)
            await self._check_forks(this.stopped, report)
        if orphans:
            await self._orphans(report)
        return report

    async def _visit(self, name: StreamName, found: KeyValue, this: _Pass) -> None:
        """Look at one stream, unless it rests. `found`: its head as it was listed."""
        report, now = this.report, asyncio.get_running_loop().time()
        try:
            if not this.whole and (uid := await self._resting_uid(name, found, now)) is not None:
                this.uids[uid] = None
                report.streams += 1
                return
            head = (await self._streams.read(name)).head
        except NoSuchStream:
            return
        except Exception as error:
            note_problem(report, str(name), error)
            this.complete = False
            return
        this.uids[head.uid] = None
        report.streams += 1
        try:
            if head.incomplete and not head.deleting:
                this.stopped += [] if await is_lease_held(self._streams, head.uid) else [(name, head.uid)]
                return
            before = replace(report, problems=[*report.problems])
            with self._confined(name.namespace, head.uid):
                suspects, rest_s = await self._stream(name, head, report)
            this.suspects += suspects
            if rest_s and report == before and not self._in_doubt:
                policy = await self._namespace_policy(name.namespace)
                self._resting.let_rest(name, head.uid, found, policy, now + rest_s)
        except (NoSuchStream, NoSuchNamespace):
            return  # It was deleted during this pass.
        except Exception as error:
            note_problem(report, str(name), error)

    async def _resting_uid(self, name: StreamName, found: KeyValue, now: float) -> str | None:
        """Return the uid of a stream that rests.

        One without a namespace does not, so that its data never pass for nobody's.
        """
        try:
            policy = await self._namespace_policy(name.namespace)
        except NoSuchNamespace:
            return None
        return self._resting.uid(name, found, policy, now)

    def _confined(self, namespace: str, uid: str) -> AbstractContextManager[None]:
        """Confine access to history to the locations allowed for this stream; an empty uid allows none."""
        places = self._places
        return confined(None if places is None else lambda where: places.why_not(where, namespace, uid))

    # -- one stream ---------------------------------------------------------------------------------------

    async def _stream(self, name: StreamName, head: Head, report: JanitorReport) -> tuple[list[_Suspect], float]:
        """Clean one stream.

        Returns the ledgers that need the second check, and for how many seconds the stream may rest if nothing was
        done.
        """
        streams, client = self._streams, self._client
        if head.deleting:
            await delete_stream(client, streams, name, uid=head.uid)
            report.deleted_streams += 1
            return [], 0.0
        policy = merged(await self._namespace_policy(name.namespace), head.policy)
        before = head.earliest
        head = await apply_retention(client, streams, name, head, policy, self._now(policy.retention_s))
        report.truncated_records += max(head.earliest - before, 0)
        done = await all_older(client, name, head, policy) or await self._is_abandoned(name, head)
        if done and await self._seal(name, head, policy):
            report.sealed_segments += 1
            self._quiet.pop(head.uid, None)
            head = (await streams.read(name)).head
        dead, _ = await dead_rows(streams, head, 1)
        if dead:
            report.deleted_segments += await trim(client, streams, name)
        report.discarded_ledgers += await self._garbage(name, head)
        suspects, intents = await self._intents(name, head, report)
        await self._join(name, head, policy, report)
        await self._offload(name, head, policy, report)
        await self._look_at_backups(name, head, policy, report)
        return suspects, 0.0 if dead or intents else rest_s(head, policy)

    async def _join(self, name: StreamName, head: Head, policy: Policy, report: JanitorReport) -> None:
        """Join small segments where there are many; a writer does so with fewer, when it opens."""
        runs = small_runs(head, policy, at_least=self._settings.join_at)
        try:
            report.joined_segments += await join(self._client, self._streams, name, head, policy, runs)
        except (NoSuchStream, NoSuchLedger, NoSuchEntry, TimeoutError):
            return  # It was truncated or deleted meanwhile, or is read later.
        except Exception as error:
            note_problem(report, str(name), error)

    async def _offload(self, name: StreamName, head: Head, policy: Policy, report: JanitorReport) -> None:
        """Offload what the policy wants. A location that is away keeps nothing else from being done."""
        try:
            if self._places is not None and asks_for_offload(head, policy):
                self._places.check_policy(name.namespace, policy.offload_to)
            now = self._now(policy.offload_after_s)
            done = await offload_by_policy(self._client, self._streams, name, head, policy, now)
            report.offloaded_segments += done.segments if done is not None else 0
        except NoSuchStream:
            raise
        except Exception as error:
            note_problem(report, str(name), error)

    async def _look_at_backups(self, name: StreamName, head: Head, policy: Policy, report: JanitorReport) -> None:
        """See whether a backup is due; those are made at the end of the pass, as they take long."""
        if self._backups is None:
            return
        try:
            await self._backups.look(name, head, policy, self._now(policy.backup_every_s))
        except Exception as error:
            note_problem(report, f"backup of {name}", error)

    async def _namespace_policy(self, namespace: str) -> Mapping[str, Any]:
        """Return a namespace's policy, which is read once per pass."""
        if namespace not in self._policies:
            self._policies[namespace] = (await self._namespaces.get(namespace)).policy
        return self._policies[namespace]

    async def _is_abandoned(self, name: StreamName, head: Head) -> bool:
        """Return whether the writer is gone: for `seal_s` the lease was free and the open segment did not grow."""
        row = head.open_segment
        if row is None or await is_lease_held(self._streams, head.uid):
            self._quiet.pop(head.uid, None)
            return False
        async with opened(self._client, StreamId(name, head.uid), row.ledger) as reader:
            seen = _Quiet(row.ledger, reader.last_confirmed, asyncio.get_running_loop().time())
        before = self._quiet.get(head.uid)
        if before is None or (before.ledger, before.last) != (seen.ledger, seen.last):
            before = self._quiet[head.uid] = seen
        return seen.since - before.since >= self._settings.seal_s

    async def _seal(self, name: StreamName, head: Head, policy: Policy) -> bool:
        """Seal the open segment of a dead writer as the next writer would. False if some writer has the lease."""
        if await is_lease_held(self._streams, head.uid):
            return False
        try:
            writer = await open_writer(
                self._client,
                self._streams,
                name,
                lambda _: policy,
                writer_name="janitor",
                takeover=False,
                wait=False,
                linger_ms=0,
                on_closed=lambda _: None,
                mirror_of=head.mirror.uid if head.mirror is not None and head.mirror.state == MIRROR else "",
                acting_for=purpose_of(str(name), head),
            )
        except WriterExists:
            return False
        async with writer:
            return True

    async def _garbage(self, name: StreamName, head: Head) -> int:
        """Delete the ledgers that left the list without records; returns how many."""
        done = 0
        for begin in range(0, len(head.garbage), _GARBAGE_AT_ONCE):
            part: tuple[LedgerId, ...] = head.garbage[begin : begin + _GARBAGE_AT_ONCE]
            for ledger in part:
                await let_go(self._client, self._streams, head.uid, ledger)
            await self._streams.change(name, partial(_swept, ledgers=part), uid=head.uid)
            done += len(part)
        return done

    async def _intents(self, name: StreamName, head: Head, report: JanitorReport) -> tuple[list[_Suspect], int]:
        """Discard what can never be listed.

        Returns the ledgers of the present epoch if the lease is free, and how many intents there were.
        """
        suspects: list[_Suspect] = []
        made: list[Intent] = []
        after, read = -1, partial(list_intents, self._streams, head.uid, limit=_INTENTS)
        while found := await retry_metadata(partial(read, after=after)):
            after = found[-1].ledger
            made += found
        last_activity = _last_activity(made, head)
        for intent in made:
            now = self._now(self._settings.retired_s if _is_retired(intent) else self._settings.bulk_age_s)
            if intent.discard or _may_discard(intent, head, last_activity, now, self._settings):
                try:
                    report.discarded_ledgers += await discard(self._client, self._streams, head.uid, intent)
                except (ConfigError, ReadFailed, WriteFailed) as error:  # The location of its files is away.
                    note_problem(report, str(name), error)
            elif _is_suspect(intent, head):
                suspects.append(_Suspect(name, head.uid, head.epoch, intent))
        if not suspects or await is_lease_held(self._streams, head.uid):
            return [], len(made)
        return suspects, len(made)

    # -- the second check, after `grace_s` ----------------------------------------------------------------

    async def _check_again(
        self, suspects: list[_Suspect], leftovers: list[str], half_deleted: list[NamespaceInfo], report: JanitorReport
    ) -> None:
        for suspect in suspects:
            try:
                head = (await self._streams.read(suspect.name)).head
                same = head.uid == suspect.uid and head.epoch == suspect.epoch
                if same and not await is_lease_held(self._streams, suspect.uid):
                    with self._confined(suspect.name.namespace, suspect.uid):
                        done = await discard(self._client, self._streams, suspect.uid, suspect.intent)
                    report.discarded_ledgers += done
            except NoSuchStream:
                continue
            except Exception as error:
                note_problem(report, str(suspect.name), error)
        for uid in leftovers:
            try:
                with self._confined("", uid):
                    await drop_leftovers(self._client, self._streams, uid)
            except Exception as error:
                note_problem(report, f"data of deleted stream {uid}", error)
        for space in half_deleted:
            try:
                await self._namespaces.restore(space)
            except (NoSuchKey, VersionConflict):
                continue
            except Exception as error:
                note_problem(report, f"namespace {space.name}", error)

    async def _check_forks(self, stopped: list[tuple[StreamName, str]], report: JanitorReport) -> None:
        """Delete forks that were not completed, if the process that was making them is still gone."""
        for name, uid in stopped:
            try:
                head = (await self._streams.read(name)).head
                if head.uid == uid and head.incomplete and not await is_lease_held(self._streams, uid):
                    with self._confined(name.namespace, uid):
                        report.deleted_streams += await delete_incomplete(self._client, self._streams, name, uid)
            except NoSuchStream:
                continue
            except Exception as error:
                note_problem(report, str(name), error)

    async def _half_deleted(self, report: JanitorReport) -> list[NamespaceInfo]:
        """Return the namespaces that are being deleted. A deletion that has stopped half-way is undone later."""
        found: list[NamespaceInfo] = []
        async for space in children_of(self._streams, self._streams.layout.namespaces):
            try:
                info = await self._namespaces.get(space)
                if info.deleting:
                    found.append(info)
            except NoSuchNamespace:
                continue
            except Exception as error:
                note_problem(report, f"namespace {space}", error)
        return found

    async def _orphans(self, report: JanitorReport) -> None:
        try:
            for orphan in await find_orphans(self._client, self._streams):
                await delete_orphan(self._client, orphan)
                report.orphans += 1
        except Exception as error:
            note_problem(report, "orphans", error)

    async def _check_clocks(self, report: JanitorReport) -> None:
        doubt = await self._client.services.clocks.doubt()
        self._in_doubt = bool(doubt)
        self._jumps = self._client.services.clocks.jumps
        with suppress(AccessRefused):  # bookies of earlier releases show it to administrators only
            self._jumps += agreed_jumps((await retry_metadata(partial(read_times, self._streams.metadata))).values())
        if doubt:
            report.problems.append(f"{BY_AGE}: {doubt}")

    def _now(self, age_s: float | None) -> int | None:
        """Return the time in microseconds UTC, for what is ended at this age; None while it is in doubt or if a clock
        was set during this pass."""
        now = None if self._in_doubt else self._client.services.clocks.moment().certain
        if now is None or not self._jumps:
            return now
        age_us = int((age_s or 0) * _US)
        return held_back(now - age_us, self._jumps, now) + age_us


def _last_activity(made: list[Intent], head: Head) -> dict[str, int]:
    """Return when each application last made a ledger or published, in microseconds UTC."""
    latest = {application: done.time for application, done in head.transactions.items()}
    for intent in made:
        application = _application(intent)
        latest[application] = max(latest.get(application, 0), intent.time)
    return latest


def _application(intent: Intent) -> str:
    """Return the application of a bulk step's ledger; ledgers of other purposes count as one application each."""
    return intent.step[0] if intent.step is not None else intent.purpose


def _is_suspect(intent: Intent, head: Head) -> bool:
    """Return whether only the writer of the present epoch can need the ledger, so that it can go with that writer."""
    if intent.purpose not in (SEGMENT, SNAPSHOT) or intent.epoch != head.epoch:
        return False
    return not is_published(head, intent.ledger)


def _is_retired(intent: Intent) -> bool:
    """Return whether the ledger was replaced by another one, and is kept only for its present readers."""
    return intent.purpose in (RETIRED, JOINED)


def _may_discard(
    intent: Intent, head: Head, last_activity: Mapping[str, int], now: int | None, settings: JanitorSettings
) -> bool:
    """Return whether the ledger may be discarded now: its maker can never list it, or was inactive for too long.

    The ledger's own age does not count: the first tasks of a large batch end long before the batch is published. `now`
    is in microseconds UTC, or None while the time is in doubt (T2).
    """
    if intent.purpose in (SEGMENT, SNAPSHOT):
        return is_stale(intent, head)
    if intent.purpose == OBJECT:
        return False  # The objects' index decides when it is deleted.
    if _is_retired(intent):
        return now is not None and now - intent.time > settings.retired_s * _US
    step = intent.step
    if step is not None and decided(head.transactions, step[0], intent.query, step[1]):
        return True
    return now is not None and now - last_activity[_application(intent)] > settings.bulk_age_s * _US


def _swept(head: Head, *, ledgers: tuple[LedgerId, ...]) -> HeadStep | None:
    return swept(head, ledgers)
