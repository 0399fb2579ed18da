"""Writers: they open by all kinds of calls, wait or take over, append, roll, and end by all kinds of calls."""

from __future__ import annotations

import asyncio

from buckram.errors import (
    BuckramError,
    WriterExists,
    WriterFailed,
    WriterLost,
)
from buckram.streams.write.writer import engine_of
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.streams.recording import RecordingWriter
from simulator.streams.stage import Actor, Stage

OPEN_S, WAIT_S = 90.0, 4.0


class WriterActor(Actor):
    """A host that opens one writer after another. It may leave a writer open without closing it."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.recordings: list[RecordingWriter] = []

    async def run(self) -> None:
        await self.nap(0.3)
        for _ in range(self.plan.sessions):
            if self.stage.over or not await self.up():
                break
            try:
                await self.inside(self._session(), "writer")
            except Died:
                self._died()
            self.no_crash()
            await self.nap(1.0)

    def _died(self) -> None:
        self.note("died")
        if self.doing:
            self.report.situation(f"crash while {self.doing}")
            self.doing = ""
        for recording in self.recordings:
            recording.session.lost = True
            self.rules.unknown(recording.session.order)
        self.recordings.clear()

    async def _session(self) -> None:
        stream = self.rng.choice(self.plan.streams)
        recording = await self._open(stream)
        if recording is None:
            await self.nap(0.5)
            return
        self.recordings.append(recording)
        for _ in range(self.rng.choice((2, 4, 7))):
            if self.stage.over:
                break
            self._append_randomly(recording)
            await self.nap(self.rng.choice((0.0, 0.02, 0.3, 0.6)))
            if recording.writer.roll_trouble:
                self.report.situation("put off a roll")
        await self._end(recording)

    async def _open(self, stream: str) -> RecordingWriter | None:
        how = self.rng.choice(("takeover", "takeover", "polite", "wait"))
        session = self.rules.new_session(self.host)
        crashing = self.maybe_crash(180)
        self.doing = "opening"
        try:
            async with asyncio.timeout(WAIT_S if how == "wait" else OPEN_S):
                writer = await self.ns.writer(
                    stream,
                    takeover=how == "takeover",
                    wait=how == "wait",
                    name=f"{self.host}-{session.number}",
                    linger_ms=self.rng.choice((0.0, 2.0, 20.0)),
                    create=self.plan.deleter,
                )
        except TimeoutError:
            self.note(f"{stream}: {how}: not open in time")
            self.report.check(
                "ends", how == "wait", "{} could not open a writer of {} in {} s", self.host, stream, OPEN_S
            )
            session.lost, self.doing = True, ""
            return None
        except BuckramError as error:
            self.note(f"{stream}: {how}: no writer: {describe(error)}: {error}")
            if isinstance(error, WriterExists):
                self.report.situation("polite writer refused")
            session.lost, self.doing = True, ""
            return None
        finally:
            if crashing and not self.process.dead:
                self.no_crash()
        self.doing = ""
        if how == "wait":
            self.report.situation("waited for the lease")
        self.note(f"{stream}: writer {session.number} by {how}, epoch {writer.epoch}, next {writer.next_offset}")
        self.rules.writer_opened(session, engine_of(writer)._claim.uid, writer.epoch, writer.next_offset)
        reading = engine_of(writer)._claim.client.services.clocks.reading()
        if reading is not None and reading.best != reading.own:
            self.report.situation("clocks of a writer and of bookies apart")
        return RecordingWriter(self, stream, writer, session)

    def _append_randomly(self, recording: RecordingWriter) -> None:
        rng, roll = self.rng, self.rng.random()
        if roll < 0.25:
            for _ in range(rng.choice((1, 1, 3))):
                recording.spawn_append(*recording.fresh())
        elif roll < 0.4:
            for _ in range(rng.choice((1, 5, 12))):
                recording.append_nowait(*recording.fresh())
        elif roll < 0.55:
            records = [recording.fresh() for _ in range(rng.choice((1, 4, 15)))]
            self._spawn(recording.append_many(records))
        elif roll < 0.65:
            records = [recording.fresh() for _ in range(rng.choice((2, 5, 12)))]
            self._spawn(recording.append_many(records, atomic=True))
        elif roll < 0.82:
            producer = rng.choice([p for p in self.stage.producers if p.stream == recording.stream])
            if rng.random() < 0.15:
                self._spawn(recording.skip_one(producer))
            self._spawn(recording.produce(producer, rng.choice((1, 2, 5)), one_by_one=rng.random() < 0.4))
        elif roll < 0.88:
            last = self.stage.txids.get(recording.stream, 0)
            txid = self.stage.txids[recording.stream] = max(0, last + rng.choice((-1, 0, 1, 5)))
            self._spawn(
                recording.append_many([recording.fresh(txid=txid), recording.fresh(txid=txid + rng.choice((0, 1)))])
            )
        elif roll < 0.93:
            self._append_expecting(recording)
        else:
            self._roll(recording)
        if rng.random() < 0.15:
            self._spawn(self._flush(recording))

    def _spawn(self, work: object) -> None:
        self.process.spawn(work, "append")  # type: ignore[arg-type]  # coroutines only

    def _append_expecting(self, recording: RecordingWriter) -> None:
        """Append with a right or wrong expected offset."""

        async def work() -> None:
            wanted = recording.writer.next_offset + self.rng.choice((0, 0, 0, 1, -1))
            if wanted >= 0:
                await recording.append(*recording.fresh(), expect=wanted)

        self._spawn(work())

    def _roll(self, recording: RecordingWriter) -> None:
        crashing = self.maybe_crash(250)
        self.doing = "rolling"

        async def work() -> None:
            try:
                if await recording.writer.roll():
                    self.report.situation("rolled by call")
            except BuckramError as error:
                self.note(f"roll failed: {describe(error)}: {error}")
                if isinstance(error, WriterLost):
                    self.rules.writer_lost(recording.session, error)
                elif isinstance(error, WriterFailed):
                    self.rules.writer_failed(recording.session, error, healthy=self.undisturbed())
            self.doing = ""
            if crashing:
                self.no_crash()

        self._spawn(work())

    async def _flush(self, recording: RecordingWriter) -> None:
        before = [sent for sent in recording.session.order if sent.result == "pending"]
        try:
            await recording.writer.flush()
        except BuckramError as error:
            self.note(f"flush failed: {describe(error)}")
            return
        await asyncio.sleep(0)  # futures that it has resolved report in this turn or the next
        left = [sent.ident for sent in before if sent.result == "pending"]
        self.report.check("ends", not left, "flush of {} returned, {} are not acknowledged", self.host, left)

    async def _end(self, recording: RecordingWriter) -> None:
        roll = self.rng.random()
        if roll < 0.2:
            return  # stays open: others take over from it, or the ending closes it
        if roll < 0.3:
            self.process.crash_after(int(self.rng.random() * 60))
            await asyncio.sleep(0.2)
            self.no_crash()
            return
        if roll < 0.4 and self.client is not None:
            await self.client.close()
            self.client = None
            return
        ending = self.plan.ending and roll > 0.7
        self.maybe_crash(150)
        try:
            async with asyncio.timeout(OPEN_S):
                if ending:
                    await recording.writer.end()
                else:
                    await recording.writer.close(wait=roll < 0.8)
        except TimeoutError:
            self.report.check(
                "ends", False, "{} could not close a writer of {} in {} s", self.host, recording.stream, OPEN_S
            )
        except BuckramError as error:
            self.note(f"{recording.stream}: close failed: {describe(error)}: {error}")
        else:
            self.note(f"{recording.stream}: {'ended' if ending else 'closed'}")
        recording.session.lost = True
        if recording in self.recordings:
            self.recordings.remove(recording)


__all__ = ["OPEN_S", "WriterActor"]
