"""The end of a life of streams: faults are healed, each stream is written once more, cleaned, read in full, deleted.

Not here: reading in full (`auditing.py`), checks of the whole life (`final_checks.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from buckram.errors import BuckramError, NoSuchStream, StreamEnded, WriterLost
from buckram.streams.maintain.janitor import BY_AGE
from buckram.streams.shared.ledgers import SEGMENT
from buckram.streams.write.writer import engine_of
from buckram.types import LedgerId
from simulator.engine.checkers.judge import describe
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish
from simulator.engine.pace import HOUR_US
from simulator.streams.auditing import Auditor
from simulator.streams.facts import HOSTILE, StreamHistory
from simulator.streams.forked import live_forks
from simulator.streams.maintenance import Deleter, JanitorActor
from simulator.streams.reading import uid_of
from simulator.streams.recording import RecordingWriter
from simulator.streams.stage import Actor, Stage, full

SETTLE_S = 15.0
VISIBLE_S = 0.020
"""Time within which a tailing reader gets an acknowledged record in a life with fast disks and metadata, seconds."""
FIND_SEGMENT_S = 0.010
"""Extra time for a reader to find the ledger in which the writer goes on after a roll, seconds."""


class Ending(Finish):
    """Ends one life of streams."""

    def __init__(self, stage: Stage, faults: FaultRunner, actors: list[asyncio.Task[None]]) -> None:
        super().__init__(stage, faults)
        self.stage, self.plan, self.actors = stage, stage.streams, actors
        self.facts, self.rules = stage.facts, stage.rules
        self.final, self.pace = Actor(stage, "f1"), stage.plan.pace
        self._alone = False
        """Set when all actors are done."""
        self._clocks_doubtful = False
        """Set if the last run of the janitor found that clocks differ."""

    async def run(self) -> None:
        self.stage.over = True
        await self.heal(asleep=lambda host: self.plan.cluster.late_wake and host.startswith("w"))
        await self._await_actors()
        if not await self.final.up(20):
            self.report.violate("ends", "no client can be started although everything was healed")
            return
        for stream in (*self.plan.streams, *self._forks()):
            await self.within(self._write_once_more(stream), f"the last writer of {stream}")
        await asyncio.sleep(self.pace.deadline_s(1.0, syncs=10, metadata_requests=3))
        self._check_appends_ended()
        await self._await_followers()
        await self.within(self._clean(), "the janitor")
        for stream in (*self.plan.streams, *self._forks()):
            await self.within(self._read_all(stream), f"reading {stream}")
        if self.plan.deleter or self.plan.seed % 4 == 0:
            await self.within(self._delete_all(), "deleting everything")
            await self.within(self._clean(), "the janitor")

    async def _await_actors(self) -> None:
        """Wait until all actors are done. With `late_wake`, paused writers go on long after another has taken over."""
        if self.plan.cluster.late_wake:
            await asyncio.sleep(self.pace.deadline_s(2.0, syncs=10, metadata_requests=3))
            for stream in self.plan.streams:
                if await self.final.up(20):
                    await self.within(self._write_once_more(stream), f"a writer of {stream}")
            for host in self.world.processes:
                self.world.resume(host)
        pending = (await asyncio.wait(self.actors, timeout=self.deadline_s + SETTLE_S))[1] if self.actors else ()
        self.report.check(
            "ends",
            not pending,
            "{} are not done {} s after everything was healed",
            [task.get_name() for task in pending],
            self.deadline_s + SETTLE_S,
        )
        for task in self.actors:
            if task.done():
                task.result()
        self._alone = not pending

    def _check_appends_ended(self) -> None:
        for session in self.facts.sessions:
            process = self.world.processes.get(session.host)
            pending = [sent.ident for sent in session.order if sent.result == "pending"]
            if process is None or process.dead or session.lost:
                continue
            self.report.check("ends", not pending, "appends of {} never end: {}", session.host, pending)

    # -- writing

    async def _write_once_more(self, stream: str) -> None:
        """Take over, repeat unacknowledged records of producers, close. A stream that ended stays as it is."""
        await self.final.inside(self._write(stream), "last writer")

    async def _write(self, stream: str) -> None:
        actor, session = self.final, self.rules.new_session("f1")
        for left in (4, 3, 2, 1, 0):
            try:
                if stream in self.plan.streams and not await actor.ns.exists(stream):
                    await self._recreate(stream)
                writer = await actor.ns.writer(stream, takeover=True, name="last")
                break
            except (StreamEnded, NoSuchStream) as error:
                actor.note(f"{stream}: {error}")
                return
            except BuckramError as error:
                actor.note(f"{stream}: {describe(error)}: {error}")
                if not left or not error.retryable:
                    raise
                await asyncio.sleep(2.0)
        self.rules.writer_opened(session, engine_of(writer)._claim.uid, writer.epoch, writer.next_offset)
        recording = RecordingWriter(actor, stream, writer, session)
        await recording.append(*recording.fresh(20))
        for producer in self.stage.producers:
            if producer.stream == stream and producer.sent >= 0:
                await recording.produce(producer, max(1, producer.sent - producer.acked), one_by_one=False)
        if stream in self.plan.streams:
            await self._check_visible(stream, recording)
        try:
            await writer.close()
        except WriterLost as error:  # While other actors run, a bulk step or another writer may have taken the stream.
            if self._alone:
                raise
            self.rules.writer_lost(session, error)

    async def _recreate(self, stream: str) -> None:
        """Create the stream again. If its deletion was interrupted by a crash, complete that first."""
        history = self.facts.current[full(stream)]
        if not history.head_removed:
            await self.final.ns.delete(stream)
        await self.final.ns.create(stream, **self.plan.policy)

    async def _check_visible(self, stream: str, recording: RecordingWriter) -> None:
        """Check that without faults a tailing reader gets acknowledged records soon, also after a roll."""
        loop, actor = asyncio.get_running_loop(), self.final
        reading = self.rules.new_reader("f1", "latest", follow=True, skip=False)
        reader = actor.ns.read(stream, start="latest", follow=True)
        arrived: dict[int, float] = {}

        async def tail() -> None:
            self.rules.reader_opened(reading, uid_of(reader), reader.position or 0)
            while (batch := await reader.next_batch()) is not None:
                self.rules.records_read(reading, batch.records())
                arrived.update(dict.fromkeys(range(batch.first_offset, batch.next_offset), loop.time()))

        await reader.open()
        task = actor.process.spawn(tail(), "tail")
        steady_since = loop.time()
        await asyncio.sleep(self.pace.deadline_s(0.3, syncs=4, metadata_requests=4))
        acked: dict[int, float] = {}
        after_roll = -1
        for roll in (False, True, False):
            if roll:
                after_roll = recording.writer.next_offset
                actor.process.spawn(self._roll(recording), "roll")
            for _ in range(2):
                ident, content = recording.fresh(20)
                await recording.append(ident, content)
                sent = self.facts.sent[ident][-1]
                if sent.offset is not None:
                    acked[sent.offset] = loop.time()
                await asyncio.sleep(0.0 if actor.rng.random() < 0.5 else 0.05)
        visible_s = self.pace.deadline_s(VISIBLE_S, syncs=4, metadata_requests=6)
        await asyncio.sleep(max(0.2, 2 * visible_s))
        if all(self.world.steady(host, steady_since) for host in self.world.processes):
            for offset, acked_at in acked.items():
                # A tail learns of a roll from metadata, which it reads several times.
                allowed_s = visible_s + (FIND_SEGMENT_S if offset >= after_roll else 0.0)
                late = arrived.get(offset, loop.time()) - acked_at
                self.report.check(
                    "visible",
                    late <= allowed_s,
                    "offset {} of {} is read {:.4f} s after its acknowledgement",
                    offset,
                    stream,
                    late,
                )
        reading.done = True
        task.cancel()
        await asyncio.wait([task])
        await reader.close()

    async def _roll(self, recording: RecordingWriter) -> None:
        try:
            await recording.writer.roll()
        except BuckramError as error:
            self.final.note(f"roll failed: {describe(error)}: {error}")

    # -- reading

    async def _await_followers(self) -> None:
        """Check that readers that follow get everything soon."""
        following = [
            (process, reading)
            for process, reading in self.stage.tails
            if not process.dead
            and not reading.done
            and reading.history is not None
            and not reading.history.head_removed
        ]
        loop = asyncio.get_running_loop()
        end = loop.time() + self.pace.deadline_s(20.0, syncs=50, metadata_requests=20)

        def behind() -> list[str]:
            return [
                f"{r.host} at {r.expected} of {r.history.name}"
                for p, r in following
                if not p.dead
                and not r.done
                and r.history is not None
                and r.history.head is not None
                and not r.history.head_removed
                and r.expected is not None
                and r.expected != r.history.head.end
            ]

        left = behind()
        while left and loop.time() < end:
            await asyncio.sleep(0.1)
            left = behind()
        for _ in following[len(left) :]:
            self.report.check("follow", True)
        if left:
            self.report.check(
                "follow",
                False,
                "followers are behind although all is well: {}; ends are {}",
                left,
                [history.head.end for history in self.facts.histories.values() if history.head],
            )

    async def _read_all(self, stream: str) -> None:
        history = self.facts.current.get(full(stream))
        if history is None or history.head_removed:
            return
        reader = Auditor(self.stage, "f2")
        if await reader.up(20):
            await reader.inside(reader.audit(stream, history), "audit")

    # -- cleaning

    async def _clean(self) -> None:
        """Check that two runs of a janitor without other actors leave nothing that no stream needs."""
        janitor = JanitorActor(self.stage, "j9")
        janitor.settings = replace(janitor.settings, join_at=0)  # Else replaced segments are left for a while.
        if not await janitor.up(20):
            return
        for host, client in self.stage.clients.items():
            process = self.world.processes[host]
            if not process.dead and host not in ("f1", "j9"):
                await self.world.join(process, client.close(), "close")
        await asyncio.sleep(self.pace.deadline_s(self.world.metadata.session_timeout_s + 5.0, metadata_requests=3))
        if self.pace.clocks_us < HOUR_US:  # A ledger is younger by the janitor's clock if its maker's clock is ahead.
            await asyncio.sleep(2 * self.pace.clocks_us / 1e6)
        for _ in range(2):
            report = await janitor.inside(janitor.clean(), "janitor")
            problems = [problem for problem in report.problems if not problem.startswith(BY_AGE)]
            self._clocks_doubtful = len(problems) < len(report.problems)
            self.report.check(
                "clocks",
                not self._clocks_doubtful or self.pace.clocks_us >= HOUR_US,
                "the janitor doubts clocks without a reason: {}",
                report.problems,
            )
            problems = [problem for problem in problems if not problem.startswith(f"{HOSTILE}/")]
            self.report.check("orphans", not problems, "the janitor has problems although all is well: {}", problems)
        self._check_nothing_left()

    def _may_stay_by_age(self, uid: str, ledger: LedgerId) -> bool:
        """Return whether an unlisted ledger may be left: the janitor doubts its clock, or finds the ledger too young.

        Ledgers of writers are deleted without regard to any clock, so this is never the case for them.
        """
        if (uid, ledger) not in self.facts.intents or self.pace.clocks_us < HOUR_US:
            return False
        purpose, created_us = self.facts.intended[uid, ledger]
        ahead = created_us - self.world.clock("j9").wall_us()
        return purpose != SEGMENT and (self._clocks_doubtful or ahead > -2_000_000 or self.pace.jumps)

    def _check_nothing_left(self) -> None:
        facts = self.facts
        for ledger, uid in facts.owned.items():
            holders = facts.shared.get(ledger, {})
            if any(self._may_stay_by_age(one, ledger) for one in (uid, *holders)):
                continue
            needing = [history for history in facts.histories.values() if _needs(history, ledger)]
            self.report.check(
                "orphans",
                any(history.uid == uid or history.uid in holders for history in needing),
                "ledger {} of stream {} is left behind, held by {}",
                ledger,
                uid,
                list(holders),
            )
            for history in needing:
                row, head = history.listed.get(ledger), history.head
                dead = row and row.sealed and head and row.end <= head.earliest and row.number != head.producers
                self.report.check("orphans", not dead, "dead segment {} of {} is left behind", row, history.name)
        for ledger, holders in facts.shared.items():
            for uid in holders:
                history = facts.histories[uid]
                self.report.check(
                    "orphans",
                    _needs(history, ledger) or self._may_stay_by_age(uid, ledger),
                    "{} holds ledger {}, which it does not list",
                    uid,
                    ledger,
                )
        for (uid, ledger), state in facts.intents.items():
            self.report.check(
                "orphans",
                self._may_stay_by_age(uid, ledger),
                "the intent ({}) of ledger {} of stream {} is left",
                state,
                ledger,
                uid,
            )
        for history in facts.histories.values():
            fork = history.head.fork if history.head is not None and not history.head_removed else None
            self.report.check("orphans", fork is None or fork.done, "fork {} is left incomplete", history.name)
            if history.head_removed:
                known = [key for key in self.world.metadata._values if f"/streams/data/{history.uid}" in key]
                left = [key for key in known if self.world.metadata.peek(key) is not None]
                self.report.check(
                    "orphans", not left, "keys of deleted stream {} are left behind: {}", history.name, left
                )

    async def _delete_all(self) -> None:
        deleter = Deleter(self.stage, "d9")
        if not await deleter.up(20):
            return
        streams = [*self.plan.streams, *self._forks()]
        deleter.rng.shuffle(streams)
        for stream in streams:
            history = self.facts.current.get(full(stream))
            if history is not None and not history.head_removed:
                await deleter.inside(self._delete(deleter, stream), "delete")
                deleter.check_deleted(history)
                deleter.check_nothing_left(history)

    def _forks(self) -> list[str]:
        return [history.name.partition("/")[2] for history in live_forks(self.facts)]

    async def _delete(self, deleter: Deleter, stream: str) -> None:
        await deleter.ns.delete(stream)
        for attempt in (deleter.ns.info(stream), deleter.ns.writer(stream, create=False)):
            try:
                await attempt
            except NoSuchStream:
                self.report.check("deleted", True)
            else:
                self.report.check("deleted", False, "{} can be used although it was deleted", stream)


def _needs(history: StreamHistory, ledger: LedgerId) -> bool:
    """Return whether the stream lists the ledger, or has its producers' table in it."""
    head, row = history.head, history.listed.get(ledger)
    if head is None or history.head_removed or ledger in head.garbage:
        return False
    if head.table is not None and head.table.ledger == ledger:
        return True  # A fork never had it in its list, if its source had trimmed it before.
    return row is not None and row.number >= head.first


__all__ = ["Ending"]
