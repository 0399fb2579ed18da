"""The janitor: carries out retention, frees space, and removes what crashes left. It may die at every step.

It deletes what a policy names and what can never be listed again, nothing else; several may run at once. A writer that
only lost its session for a moment is not robbed: what belongs to nobody now is looked at again after a while. While it
is in doubt what time it is, nothing goes by age (T2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from buckram.client.client import Client
from buckram.core.cluster.wall_time import APART_US, Steadiness
from buckram.core.streams.changes import Step, swept
from buckram.core.streams.head import Head
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.core.streams.transactions import decided
from buckram.errors import (
    BuckramError,
    InvariantViolation,
    NoSuchKey,
    NoSuchNamespace,
    NoSuchStream,
    VersionConflict,
    WriterExists,
)
from buckram.streams.maintain.delete import delete_stream, drop_leftovers
from buckram.streams.maintain.orphans import all_names, children_of, delete_orphan, find_orphans
from buckram.streams.maintain.retention import all_older, apply_retention, held
from buckram.streams.maintain.truncate import dead_rows, trim
from buckram.streams.shared.ledgers import RETIRED, SEGMENT, Intent, discard, drop_ledger, intents
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.streams.shared.namespaces import NamespaceInfo, Namespaces
from buckram.streams.write.opening import open_writer
from buckram.types import EntryId, LedgerId

_US = 1_000_000
_INTENTS = 1000
_GARBAGE_AT_ONCE = 64
BY_AGE = "what goes by age"


@dataclass(frozen=True, slots=True)
class JanitorSettings:
    grace_s: float = 3.0
    """Between the two looks that decide that something belongs to nobody."""
    bulk_age_s: float = 86_400.0
    """An application is taken for dead when it neither published nor made a ledger for so long; then what it made and
    did not publish is discarded. Of one that lives only what is decided goes, however old it is."""
    retired_s: float = 3600.0
    """Ledgers whose segments were compacted are kept for so long: somebody may be reading them, or plan to."""
    seal_s: float = 60.0
    """A stream whose lease was free for so long, and whose open segment did not grow meanwhile, is sealed: its writer
    died, and its last records are readable only then."""
    orphans: bool = True
    """Read the record of every ledger and delete orphans, too."""


@dataclass(slots=True)
class JanitorReport:
    """What one pass did."""

    streams: int = 0
    truncated_records: int = 0
    deleted_segments: int = 0
    sealed_segments: int = 0
    discarded_ledgers: int = 0
    """Prepared, bulk or compacted ledgers that were never listed, those that left a list empty or for a copy."""
    deleted_streams: int = 0
    """Deletions that somebody began and did not end."""
    orphans: int = 0
    problems: list[str] = field(default_factory=list)
    """What was put off, with the reason; the next pass tries again."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A ledger that belongs to nobody, if that is still so after a while."""

    name: StreamName
    uid: str
    epoch: int
    intent: Intent


@dataclass(frozen=True, slots=True)
class _Quiet:
    """The open segment of a stream without a lease: its last confirmed entry, and since when (loop time)."""

    ledger: LedgerId
    last: EntryId
    since: float


class Janitor:
    """`clean` is one pass over all streams of a cluster, `run` repeats it. Owns no task; what it keeps is since when a
    stream seems to have no writer. One pass cannot tell whether such a stream was left: `finish` waits and looks again.
    """

    def __init__(self, client: Client, settings: JanitorSettings | None = None) -> None:
        self._client = client
        self._streams = StreamStore(client.services.store)
        self._spaces = Namespaces(self._streams)
        self._settings = settings or JanitorSettings()
        self._policies: dict[str, Mapping[str, Any]] = {}
        self._rounds = Steadiness()
        self._ahead: int | None = None
        """Wall time minus loop time as it was found right at the start of this pass; None: it is in doubt."""
        self._quiet: dict[str, _Quiet] = {}
        """By uid: streams with an open segment and a free lease."""

    async def run(self, interval_s: float, on_report: Callable[[JanitorReport], None] = lambda _: None) -> None:
        """Clean, tell, pause, for ever. Only InvariantViolation and HandleClosed end it."""
        while True:
            on_report(await self.clean())
            await asyncio.sleep(interval_s)

    @property
    def undecided(self) -> int:
        """Streams that seem to have no writer since the last pass: sealed if the one after `seal_s` finds them so."""
        return len(self._quiet)

    async def finish(self, on_waiting: Callable[[int], None] = lambda _: None) -> JanitorReport:
        """Clean, and where streams seem to have no writer wait for `seal_s` and look at them again, for who does not
        run all the time. `on_waiting` is called with the number of streams it waits for."""
        report = await self.clean()
        if not self.undecided:
            return report
        on_waiting(self.undecided)
        await asyncio.sleep(self._settings.seal_s)
        return both(report, await self.clean(orphans=False))

    async def clean(self, *, orphans: bool | None = None) -> JanitorReport:
        """One pass. What fails for one stream is reported and does not keep others from being cleaned.

        `orphans`: for this pass, instead of the settings' own.
        """
        self._client.services.guard()
        report, suspects = JanitorReport(), []
        self._policies.clear()
        await self._look_at_clocks(report)
        # Before the heads: data that belongs to no head afterwards belongs to a stream that is gone.
        data = [uid async for uid in children_of(self._streams, self._streams.layout.all_data)]
        uids: dict[str, None] = {}
        async for name in all_names(self._streams):
            try:
                head = (await self._streams.read(name)).head
            except NoSuchStream:
                continue
            except BuckramError as error:
                _put_off(report, str(name), error)
                data = []  # whose data there is cannot be told without this head
                continue
            uids[head.uid] = None
            report.streams += 1
            try:
                suspects += await self._stream(name, head, report)
            except (NoSuchStream, NoSuchNamespace):
                continue  # deleted under our eyes
            except BuckramError as error:
                _put_off(report, str(name), error)
        self._quiet = {uid: quiet for uid, quiet in self._quiet.items() if uid in uids}
        leftovers = [uid for uid in data if uid not in uids]
        halves = await self._half_deleted(report)
        if suspects or leftovers or halves:
            await asyncio.sleep(self._settings.grace_s)
            await self._second_look(suspects, leftovers, halves, report)
        if self._settings.orphans if orphans is None else orphans:
            await self._orphans(report)
        return report

    # -- one stream ---------------------------------------------------------------------------------------

    async def _stream(self, name: StreamName, head: Head, report: JanitorReport) -> list[_Suspect]:
        """What may belong to nobody."""
        streams, client = self._streams, self._client
        if head.deleting:
            await delete_stream(client, streams, name, uid=head.uid)
            report.deleted_streams += 1
            return []
        policy = merged(await self._settings_of(name.namespace), head.policy)
        before = head.earliest
        head = await apply_retention(client, streams, name, head, policy, self._now())
        report.truncated_records += max(head.earliest - before, 0)
        done = await all_older(client, name, head, policy) or await self._left(head)
        if done and await self._seal(name, head, policy):
            report.sealed_segments += 1
            self._quiet.pop(head.uid, None)
            head = (await streams.read(name)).head
        if (await dead_rows(streams, head, 1))[0]:
            report.deleted_segments += await trim(client, streams, name)
        report.discarded_ledgers += await self._garbage(name, head)
        return await self._intents(name, head, report)

    async def _settings_of(self, namespace: str) -> Mapping[str, Any]:
        """A namespace's policy, looked up once a pass."""
        if namespace not in self._policies:
            self._policies[namespace] = (await self._spaces.get(namespace)).policy
        return self._policies[namespace]

    async def _left(self, head: Head) -> bool:
        """Its writer is gone: the lease was free for a while, in which the open segment did not grow."""
        row = head.open_segment
        if row is None or await held(self._streams, head.uid):
            self._quiet.pop(head.uid, None)
            return False
        async with self._client.open(row.ledger) as reader:
            seen = _Quiet(row.ledger, reader.last_confirmed, asyncio.get_running_loop().time())
        before = self._quiet.get(head.uid)
        if before is None or (before.ledger, before.last) != (seen.ledger, seen.last):
            before = self._quiet[head.uid] = seen
        return seen.since - before.since >= self._settings.seal_s

    async def _seal(self, name: StreamName, head: Head, policy: Policy) -> bool:
        """The writer died with a segment open: end it as the next writer would. One that came back is not robbed."""
        if await held(self._streams, head.uid):
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
            )
        except WriterExists:
            return False
        async with writer:
            return True

    async def _garbage(self, name: StreamName, head: Head) -> int:
        done = 0
        for begin in range(0, len(head.garbage), _GARBAGE_AT_ONCE):
            part: tuple[LedgerId, ...] = head.garbage[begin : begin + _GARBAGE_AT_ONCE]
            for ledger in part:
                await drop_ledger(self._client, ledger)
            await self._streams.change(name, partial(_swept, ledgers=part), uid=head.uid)
            done += len(part)
        return done

    async def _intents(self, name: StreamName, head: Head, report: JanitorReport) -> list[_Suspect]:
        suspects: list[_Suspect] = []
        made: list[Intent] = []
        after = -1
        while found := await retry_metadata(partial(intents, self._streams, head.uid, after=after, limit=_INTENTS)):
            after = found[-1].ledger
            made += found
        alive = _alive(made, head)
        for intent in made:
            if intent.discard or _dead(intent, head, alive, self._now(), self._settings):
                report.discarded_ledgers += await discard(self._client, self._streams, head.uid, intent)
            elif intent.purpose == SEGMENT and intent.epoch == head.epoch:
                suspects.append(_Suspect(name, head.uid, head.epoch, intent))
        if not suspects or await held(self._streams, head.uid):
            return []
        return suspects

    # -- after a while ------------------------------------------------------------------------------------

    async def _second_look(
        self, suspects: list[_Suspect], leftovers: list[str], halves: list[NamespaceInfo], report: JanitorReport
    ) -> None:
        for suspect in suspects:
            try:
                head = (await self._streams.read(suspect.name)).head
                same = head.uid == suspect.uid and head.epoch == suspect.epoch
                if same and not await held(self._streams, suspect.uid):
                    done = await discard(self._client, self._streams, suspect.uid, suspect.intent)
                    report.discarded_ledgers += done
            except NoSuchStream:
                continue
            except BuckramError as error:
                _put_off(report, str(suspect.name), error)
        for uid in leftovers:
            try:
                await drop_leftovers(self._client, self._streams, uid)
            except BuckramError as error:
                _put_off(report, f"data of deleted stream {uid}", error)
        for space in halves:
            try:
                await self._spaces.restore(space)
            except (NoSuchKey, VersionConflict):
                continue
            except BuckramError as error:
                _put_off(report, f"namespace {space.name}", error)

    async def _half_deleted(self, report: JanitorReport) -> list[NamespaceInfo]:
        """Namespaces whose deletion began. Should it have stopped, it is taken back: there may be streams in it."""
        found: list[NamespaceInfo] = []
        async for space in children_of(self._streams, self._streams.layout.namespaces):
            try:
                info = await self._spaces.get(space)
                if info.deleting:
                    found.append(info)
            except NoSuchNamespace:
                continue
            except BuckramError as error:
                _put_off(report, f"namespace {space}", error)
        return found

    async def _orphans(self, report: JanitorReport) -> None:
        try:
            for orphan in await find_orphans(self._client, self._streams):
                await delete_orphan(self._client, orphan)
                report.orphans += 1
        except BuckramError as error:
            _put_off(report, "orphans", error)

    async def _look_at_clocks(self, report: JanitorReport) -> None:
        clocks, self._ahead = self._client.services.clocks, None
        doubt = await clocks.doubt(self._rounds)
        if doubt:
            report.problems.append(f"{BY_AGE}: {doubt}")
        else:
            self._ahead = self._client.services.runtime.clock.wall_us() - _loop_us()

    def _now(self) -> int | None:
        """None: in doubt, also because the clock was set during this pass."""
        own = self._client.services.runtime.clock.wall_us()
        return None if self._ahead is None or abs(own - _loop_us() - self._ahead) > APART_US else own


def both(first: JanitorReport, second: JanitorReport) -> JanitorReport:
    """What two passes did together; the second one's streams and problems are those of now."""
    return JanitorReport(
        second.streams,
        first.truncated_records + second.truncated_records,
        first.deleted_segments + second.deleted_segments,
        first.sealed_segments + second.sealed_segments,
        first.discarded_ledgers + second.discarded_ledgers,
        first.deleted_streams + second.deleted_streams,
        first.orphans + second.orphans,
        second.problems,
    )


def _alive(made: list[Intent], head: Head) -> dict[str, int]:
    """When each application was last heard of: it made a ledger or published."""
    heard = {application: done.time for application, done in head.transactions.items()}
    for intent in made:
        application = _application(intent)
        heard[application] = max(heard.get(application, 0), intent.time)
    return heard


def _application(intent: Intent) -> str:
    return intent.step[0] if intent.step is not None else intent.purpose


def _dead(intent: Intent, head: Head, alive: Mapping[str, int], now: int | None, settings: JanitorSettings) -> bool:
    """It can be discarded at once: whoever made it can never list it, or has not been heard of for long.

    A ledger's own age says nothing: a large batch takes its time, and its first tasks end long before it is published.
    """
    if intent.purpose == SEGMENT:
        return intent.epoch < head.epoch
    if intent.purpose == RETIRED:
        return now is not None and now - intent.time > settings.retired_s * _US
    step = intent.step
    if step is not None and decided(head.transactions, step[0], intent.query, step[1]):
        return True
    return now is not None and now - alive[_application(intent)] > settings.bulk_age_s * _US


def _loop_us() -> int:
    return int(asyncio.get_running_loop().time() * _US)


def _swept(head: Head, *, ledgers: tuple[LedgerId, ...]) -> Step | None:
    return swept(head, ledgers)


def _put_off(report: JanitorReport, what: str, error: BuckramError) -> None:
    if isinstance(error, InvariantViolation):
        raise error
    report.problems.append(f"{what}: {error}")


__all__ = ["BY_AGE", "Janitor", "JanitorReport", "JanitorSettings"]
