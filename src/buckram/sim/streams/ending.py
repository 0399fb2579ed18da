"""How a stream's life ends: healed, what hangs must move, written once more, cleaned, read in full, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from buckram.errors import BuckramError, NoSuchStream, StreamEnded
from buckram.sim.engine.checkers.judge import describe
from buckram.sim.engine.faults import FaultRunner
from buckram.sim.engine.pace import HOUR_US
from buckram.sim.engine.world import Died
from buckram.sim.streams.facts import ReaderSession, StreamHistory
from buckram.sim.streams.maintenance import Deleter, JanitorActor
from buckram.sim.streams.reading import ReaderActor, uid_of
from buckram.sim.streams.stage import Actor, Stage, full
from buckram.sim.streams.writing import RecordingWriter
from buckram.streams.maintain.janitor import BY_AGE
from buckram.streams.shared.ledgers import SEGMENT
from buckram.streams.write.writer import engine_of
from buckram.types import LedgerId

SETTLE_S, DEADLINE_S = 15.0, 90.0
VISIBLE_S = 0.020


class Ending:
    def __init__(self, stage: Stage, faults: FaultRunner, actors: list[asyncio.Task[None]]) -> None:
        self.stage, self.world, self.plan, self.faults, self.actors = stage, stage.world, stage.streams, faults, actors
        self.facts, self.rules, self.report = stage.facts, stage.rules, stage.world.report
        self.final, self.pace = Actor(stage, "f1"), stage.plan.pace
        self._in_doubt = False
        """The last pass of the janitor found clocks that are apart."""
        self.deadline_s = self.pace.patience(DEADLINE_S, syncs=300, questions=60)

    async def run(self) -> None:
        await self._heal()
        await self._actors_end()
        if not await self.final.up(20):
            self.report.violate("ends", "no client can be started although everything was healed")
            return
        for stream in self.plan.streams:
            await self._within(self._last_words(stream), f"the last writer of {stream}")
        await asyncio.sleep(self.pace.patience(1.0, syncs=10, questions=3))
        self._answers_came()
        await self._followers()
        await self._within(self._clean(), "the janitor")
        for stream in self.plan.streams:
            await self._within(self._read_all(stream), f"reading {stream}")
        if self.plan.deleter or self.plan.seed % 4 == 0:
            await self._within(self._delete_all(), "deleting everything")
            await self._within(self._clean(), "the janitor")

    async def _heal(self) -> None:
        """Everything that can be undone is undone."""
        world = self.world
        world.trace.note("ending", "heals")
        self.faults.heal()
        self.stage.over = True
        for process in world.processes.values():
            process.crash_after(1 << 60)
        for machine in world.machines.values():
            if not machine.running and not world.judge.facts.bookie(machine.name).wiped:
                for _ in range(10):
                    await self.faults.restart(machine)
                    if machine.ready:
                        break
                    await asyncio.sleep(1.0)
                self.report.check(
                    "ends", machine.ready, "{} does not start although all is well: {}", machine.name, machine.refused
                )
        for host in world.processes:
            if not (self.plan.cluster.late_wake and host.startswith("w")):
                world.resume(host)

    async def _actors_end(self) -> None:
        """Whatever they were at ends. Late sleepers wake when another has long taken over."""
        if self.plan.cluster.late_wake:
            await asyncio.sleep(self.pace.patience(2.0, syncs=10, questions=3))
            for stream in self.plan.streams:
                if await self.final.up(20):
                    await self._within(self._last_words(stream), f"a writer of {stream}")
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

    def _answers_came(self) -> None:
        for session in self.facts.sessions:
            process = self.world.processes.get(session.host)
            pending = [sent.ident for sent in session.order if sent.result == "pending"]
            if process is None or process.dead or session.lost:
                continue
            self.report.check("ends", not pending, "appends of {} never end: {}", session.host, pending)

    async def _within(self, work: Awaitable[None], what: str) -> None:
        try:
            async with asyncio.timeout(self.deadline_s):
                await work
        except TimeoutError:
            self.report.check(
                "ends",
                False,
                "{} is not done within {} s although all is well; {}",
                what,
                self.deadline_s,
                self.world.loop.waiting(),
            )
        except (BuckramError, Died) as error:
            self.report.check("ends", False, "{} fails although all is well: {!r}", what, error)
        else:
            self.report.check("ends", True)

    # -- writing ------------------------------------------------------------------------------------------

    async def _last_words(self, stream: str) -> None:
        """Take over, retry what producers did not hear of, close. A stream that ended stays as it is."""
        await self.final.inside(self._write(stream), "last writer")

    async def _write(self, stream: str) -> None:
        actor, session = self.final, self.rules.new_session("f1")
        for left in (4, 3, 2, 1, 0):
            try:
                if not await actor.ns.exists(stream):
                    await self._anew(stream)
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
        await self._visible(stream, recording)
        await writer.close()

    async def _anew(self, stream: str) -> None:
        """It was deleted; maybe somebody died over that."""
        history = self.facts.current[full(stream)]
        if not history.head_removed:
            await self.final.ns.delete(stream)
        await self.final.ns.create(stream, **self.plan.policy)

    async def _visible(self, stream: str, recording: RecordingWriter) -> None:
        """All is well: a tailing reader gets each record soon after its acknowledgement, also after a roll."""
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
        await asyncio.sleep(self.pace.patience(0.3, syncs=4, questions=4))
        acked: dict[int, float] = {}
        for roll in (False, True, False):
            if roll:
                actor.process.spawn(self._roll(recording), "roll")
            for _ in range(2):
                ident, content = recording.fresh(20)
                await recording.append(ident, content)
                sent = self.facts.sent[ident][-1]
                if sent.offset is not None:
                    acked[sent.offset] = loop.time()
                await asyncio.sleep(0.0 if actor.rng.random() < 0.5 else 0.05)
        visible_s = self.pace.patience(VISIBLE_S, syncs=4, questions=6)
        await asyncio.sleep(max(0.2, 2 * visible_s))
        if all(self.world.steady(host, steady_since) for host in self.world.processes):
            for offset, told in acked.items():
                # A tail learns of a roll from metadata, which it asks several times.
                late = arrived.get(offset, loop.time()) - told
                self.report.check(
                    "visible",
                    late <= visible_s,
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

    # -- reading ------------------------------------------------------------------------------------------

    async def _followers(self) -> None:
        """Those that follow have everything soon."""
        due = [
            (process, reading)
            for process, reading in self.stage.tails
            if not process.dead
            and not reading.done
            and reading.history is not None
            and not reading.history.head_removed
        ]
        loop = asyncio.get_running_loop()
        end = loop.time() + self.pace.patience(20.0, syncs=50, questions=20)

        def behind() -> list[str]:
            return [
                f"{r.host} at {r.expected} of {r.history.name}"
                for p, r in due
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
        for _ in due[len(left) :]:
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

    # -- cleaning -----------------------------------------------------------------------------------------

    async def _clean(self) -> None:
        """Nobody is at work any more: after two passes nothing is left that no stream needs."""
        janitor = JanitorActor(self.stage, "j9")
        if not await janitor.up(20):
            return
        for host, client in self.stage.clients.items():
            process = self.world.processes[host]
            if not process.dead and host not in ("f1", "j9"):
                await self.world.join(process, client.close(), "close")
        await asyncio.sleep(self.pace.patience(self.world.metadata.session_timeout_s + 5.0, questions=3))
        for _ in range(2):
            report = await janitor.inside(janitor.clean(), "janitor")
            problems = [problem for problem in report.problems if not problem.startswith(BY_AGE)]
            self._in_doubt = len(problems) < len(report.problems)
            self.report.check(
                "clocks",
                not self._in_doubt or self.pace.clocks_us >= HOUR_US,
                "in doubt without a reason: {}",
                report.problems,
            )
            self.report.check("orphans", not problems, "the janitor has problems although all is well: {}", problems)
        self._nothing_left()

    def _looks_young(self, uid: str, ledger: LedgerId) -> bool:
        """What goes by age stays while clocks are apart, and until its maker's time has come.

        A ledger of a writer goes without regard to any clock.
        """
        if (uid, ledger) not in self.facts.intents or self.pace.clocks_us < HOUR_US:
            return False
        purpose, made_us = self.facts.intended[uid, ledger]
        ahead = made_us - self.world.clock("j9").wall_us()
        return purpose != SEGMENT and (self._in_doubt or ahead > -2_000_000 or self.pace.jumps)

    def _nothing_left(self) -> None:
        facts = self.facts
        for ledger, uid in facts.owned.items():
            if self._looks_young(uid, ledger):
                continue
            history = facts.histories.get(uid)
            row = history.listed.get(ledger) if history is not None and not history.head_removed else None
            needed = (
                row is not None
                and history is not None
                and history.head is not None
                and ledger not in history.head.garbage
            )
            table = history.head.table if history is not None and history.head is not None else None
            kept = table is not None and table == row
            self.report.check(
                "orphans",
                needed and row is not None and (kept or row.number >= _first(history)),
                "ledger {} of stream {} is left behind",
                ledger,
                history.name if history else uid,
            )
            if row is not None and history is not None and history.head is not None:
                dead = row.sealed and row.end <= history.head.earliest and row.number != history.head.producers
                self.report.check("orphans", not dead, "dead segment {} of {} is left behind", row, history.name)
        for (uid, ledger), state in facts.intents.items():
            self.report.check(
                "orphans",
                self._looks_young(uid, ledger),
                "the intent ({}) of ledger {} of stream {} is left",
                state,
                ledger,
                uid,
            )
        for history in facts.histories.values():
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
        for stream in self.plan.streams:
            history = self.facts.current.get(full(stream))
            if history is not None and not history.head_removed:
                await deleter.inside(self._delete(deleter, stream), "delete")
                deleter.deleted(history)
                deleter.nothing_left(history)

    async def _delete(self, deleter: Deleter, stream: str) -> None:
        await deleter.ns.delete(stream)
        for attempt in (deleter.ns.info(stream), deleter.ns.writer(stream, create=False)):
            try:
                await attempt
            except NoSuchStream:
                self.report.check("deleted", True)
            else:
                self.report.check("deleted", False, "{} can be used although it was deleted", stream)


def _first(history: StreamHistory | None) -> int:
    return history.head.first if history is not None and history.head is not None else 0


class Auditor(ReaderActor):
    """Reads a stream that nobody writes: in full, and from every kind of start, where the answer is certain."""

    async def audit(self, stream: str, history: StreamHistory) -> None:
        assert history.head is not None
        found = await self._exactly(stream, history, "earliest", history.head.earliest, start="earliest")
        history.final = {offset: history.known_records[offset].ident for offset in found}
        history.final_earliest = history.head.earliest
        for kind, wanted, first, options in self._starts(history):
            await self._exactly(stream, history, f"{kind} {wanted}", first, most=5, **options)
        for offset in self.rng.sample(found, min(3, len(found))):
            record = await self.ns.get(stream, offset)
            self.report.check(
                "start",
                self.facts.ident_of(record) == history.final[offset] and record.offset == offset,
                "get({}) of {} is {!r}",
                offset,
                stream,
                record,
            )

    def _starts(self, history: StreamHistory) -> list[tuple[str, int, int, dict[str, object]]]:
        """(kind, wanted, the first offset that must come, options)."""
        assert history.head is not None
        assert history.final is not None
        earliest, end, rng = history.head.earliest, history.head.end, self.rng
        offsets = list(history.final)
        starts: list[tuple[str, int, int, dict[str, object]]] = [("latest", 0, end, {"start": "latest"})]
        for offset in [rng.randrange(earliest, end + 1) for _ in range(3)]:
            starts.append(("offset", offset, offset, {"start": offset}))
        for offset in rng.sample(offsets, min(4, len(offsets))):
            time = (history.known_records[offset].time or 0) + rng.choice((0, 0, 1))
            first = next((o for o in offsets if (history.known_records[o].time or 0) >= time), end)
            starts.append(("time", time, first, {"start_time": time}))
        txids = [(o, txid) for o in offsets if (txid := history.known_records[o].txid) is not None]
        for _, known in rng.sample(txids, min(3, len(txids))):
            wanted = max(0, known + rng.choice((-1, 0, 1)))
            first = next((o for o, txid in txids if txid >= wanted), end)
            starts.append(("txid", wanted, first, {"start_txid": wanted}))
        return starts

    async def _exactly(
        self, stream: str, history: StreamHistory, what: str, first: int, *, most: int = 1 << 60, **options: object
    ) -> list[int]:
        """Read to the end, or about `most` records; it must be everything from `first` on."""
        assert history.head is not None
        for left in (2, 1, 0):
            reading: ReaderSession = self.rules.new_reader(self.host, "audit", follow=False, skip=False)
            reader = self.ns.read(stream, **options)  # type: ignore[arg-type]  # the starts above
            found: list[int] = []
            try:
                await reader.open()
                self.rules.reader_opened(reading, uid_of(reader), first)
                while len(found) < most and (batch := await reader.next_batch()) is not None:
                    self.rules.records_read(reading, batch.records())
                    found += range(batch.first_offset, batch.next_offset)
                break
            except BuckramError as error:
                self.note(f"{what}: {describe(error)}: {error}")
                if not left or not error.retryable:
                    raise
            finally:
                reading.done = True
                await reader.close()
        end = history.head.end
        due = range(first, end if len(found) < most else first + len(found))
        self.report.check(
            "start",
            found == list(due),
            "{} from {} has {} to {}, due was {} to {}",
            stream,
            what,
            found[:1],
            found[-1:],
            first,
            end,
        )
        return found


__all__ = ["Ending"]
