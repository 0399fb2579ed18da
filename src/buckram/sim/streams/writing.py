"""Writers: they open politely, wait or take over, append in every way there is, roll, and end in every way there is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from buckram.core.streams.producers import UNKNOWN_OFFSET
from buckram.errors import (
    BuckramError,
    BufferFull,
    InvalidArgument,
    OffsetMismatch,
    OutOfOrderSequence,
    ProducerForgotten,
    RecordTooLarge,
    StreamEnded,
    TxidOutOfOrder,
    WriterExists,
    WriterFailed,
    WriterLost,
)
from buckram.sim.engine.checkers.judge import describe
from buckram.sim.engine.world import Died
from buckram.sim.streams.facts import Content, SentRecord, WriterSession
from buckram.sim.streams.stage import Actor, Producer, Stage, full
from buckram.streams.write.writer import StreamWriter, engine_of

REFUSALS = (
    OffsetMismatch,
    OutOfOrderSequence,
    ProducerForgotten,
    RecordTooLarge,
    TxidOutOfOrder,
    BufferFull,
    InvalidArgument,
)
"""Nothing was written, say these."""
OPEN_S, WAIT_S = 90.0, 4.0


class RecordingWriter:
    """An open writer, and how records are given to it and answers noted."""

    def __init__(self, actor: Actor, stream: str, writer: StreamWriter, session: WriterSession) -> None:
        self.actor, self.stream, self.writer, self.session = actor, stream, writer, session
        self._serial = 0

    def _note(self, text: str) -> None:
        self.actor.note(f"{self.stream} {self.session.number}: {text}")

    def fresh(self, size: int | None = None, **more: object) -> tuple[str, Content]:
        """A new record of this session, now and then without a value."""
        rng = self.actor.rng
        ident = f"{self.actor.host}.{self.session.number}/{self._serial}"
        self._serial += 1
        mark = f"{ident}|".encode()
        value: bytes | None = mark + bytes(rng.choice((0, 20, 100, 700)) if size is None else size)
        key = None
        if size is None and (shape := rng.random()) < 0.15:
            value, key = (None, mark) if shape < 0.08 else (b"", mark)
        headers = (("h", b"1"), ("e", b"")) if rng.random() < 0.1 else ()
        timestamp = rng.randrange(10**15) if rng.random() < 0.2 else None
        return ident, Content(value, key, headers, timestamp, **more)  # type: ignore[arg-type]  # txid, producer, ...

    # -- calls, each of which registers in the same turn as it calls ---------------------------------------

    def spawn_append(self, ident: str, content: Content, expect: int | None = None) -> asyncio.Task[None]:
        return self.actor.process.spawn(self.append(ident, content, expect), "append")

    async def append(self, ident: str, content: Content, expect: int | None = None) -> None:
        sent = self._submit([ident], [content])
        try:
            offset = await self.writer.append(
                content.value,
                key=content.key,
                headers=content.headers,
                timestamp=content.timestamp,
                txid=content.txid,
                producer=content.producer,
                sequence=content.sequence,
                expect_offset=expect,
            )
        except BuckramError as error:
            self._failed(sent, error)
        else:
            self._ok(sent, [offset], expect)

    def append_nowait(self, ident: str, content: Content) -> None:
        sent = self._submit([ident], [content])
        more: dict[str, Any] = {
            "key": content.key,
            "headers": content.headers,
            "timestamp": content.timestamp,
            "txid": content.txid,
        }
        try:
            # Values alone have a way of their own.
            future = self.writer.append_nowait(content.value, **{name: it for name, it in more.items() if it})
        except BuckramError as error:
            self._failed(sent, error)
            return
        future.add_done_callback(lambda done: self._done(sent, done))

    def _done(self, sent: Sequence[SentRecord], done: asyncio.Future[int]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, BuckramError):
            self._failed(sent, error)
        elif error is None and not done.cancelled():
            self._ok(sent, [done.result()])

    async def append_many(
        self, records: Sequence[tuple[str, Content]], *, atomic: bool = False, expect: int | None = None
    ) -> None:
        idents, contents = [ident for ident, _ in records], [content for _, content in records]
        sent = self._submit(idents, contents)
        if atomic:
            self.actor.rules.atomic_append(self.session, idents)
        first = contents[0]
        try:
            offsets = await self.writer.append_many(
                [c.value for c in contents],
                keys=[c.key for c in contents],
                headers=[c.headers for c in contents],
                timestamps=[c.timestamp for c in contents],
                txids=[c.txid for c in contents] if any(c.txid is not None for c in contents) else None,
                producer=first.producer,
                sequence=first.sequence,
                atomic=atomic,
                expect_offset=expect,
            )
        except BuckramError as error:
            self._failed(sent, error)
            return
        again = len(sent) - len(offsets)
        self.actor.report.check(
            "idempotent" if first.producer else "stable",
            again == 0 or first.producer is not None,
            "{} records became {} offsets",
            len(sent),
            len(offsets),
        )
        if again:
            self.actor.rules.already_stored(sent[:again])
        self._ok(sent[again:], list(offsets), expect)

    def _submit(self, idents: Sequence[str], contents: Sequence[Content]) -> list[SentRecord]:
        return self.actor.facts.submit(self.session, idents, contents)

    def _ok(self, sent: Sequence[SentRecord], offsets: Sequence[int], expect: int | None = None) -> None:
        rules, report = self.actor.rules, self.actor.report
        if sent:
            self._note(f"{sent[0].ident} and {len(sent) - 1} more at {offsets[0]}")
        if expect is not None and sent and offsets[0] != UNKNOWN_OFFSET:
            report.check(
                "txid", offsets[0] == expect, "{} was to be at {}, it is at {}", sent[0].ident, expect, offsets[0]
            )
        for one, offset in zip(sent, offsets, strict=True):
            if offset == UNKNOWN_OFFSET:
                rules.already_stored([one])
            else:
                rules.acknowledged(one, offset)

    def _failed(self, sent: Sequence[SentRecord], error: BuckramError) -> None:
        self._note(f"{sent[0].ident} and {len(sent) - 1} more failed: {describe(error)}: {error}")
        if isinstance(error, REFUSALS):
            self.actor.rules.refused(sent)
        else:
            self.actor.rules.unknown(sent)
        if isinstance(error, WriterLost) and not self.session.lost:
            self.actor.report.situation("writer lost the stream")
            self.actor.rules.writer_lost(self.session, error)
        elif isinstance(error, WriterFailed):
            self.actor.rules.writer_failed(self.session, error, healthy=self.actor.unhindered())

    # -- several at once -----------------------------------------------------------------------------------

    async def produce(self, producer: Producer, count: int, *, one_by_one: bool) -> None:
        """As an application does: from the first on that it did not hear of, in order."""
        first = producer.acked + 1
        if first <= producer.sent and self.actor.rng.random() < 0.3:
            first = max(0, first - 1)  # one that it heard of, again
        records = [producer.content(sequence) for sequence in range(first, first + count)]
        producer.sent = max(producer.sent, first + count - 1)
        if one_by_one:
            for ident, content in records:
                await self.append(ident, content)
                if self.actor.facts.sent[ident][-1].result != "ok":
                    return
        else:
            await self.append_many(records)
        for sequence, (ident, _) in enumerate(records, first):
            mine = [s for s in self.actor.facts.sent[ident] if s.session is self.session]
            if any(s.result == "ok" for s in mine) and sequence == producer.acked + 1:
                producer.acked = sequence

    async def skip_one(self, producer: Producer) -> None:
        """A faulty application leaves out a sequence: were that accepted, the lower one would be lost as a retry."""
        gap = producer.content(producer.sent + 2)
        await self.append(*gap)
        sent = self.actor.facts.sent[gap[0]][-1]
        self.actor.report.check(
            "idempotent",
            sent.result != "ok",
            "{} was stored, {} of {} was never sent",
            gap[0],
            producer.sent + 1,
            producer.name,
        )
        if sent.result == "refused":
            self.actor.report.situation("gap in sequences refused")


class WriterActor(Actor):
    """A host that wants to write. Its sessions follow one another; a writer may also be left alone and come back."""

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
            self._step(recording)
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

    def _step(self, recording: RecordingWriter) -> None:
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
            self._expect(recording)
        else:
            self._roll(recording)
        if rng.random() < 0.15:
            self._spawn(self._flush(recording))

    def _spawn(self, work: object) -> None:
        self.process.spawn(work, "append")  # type: ignore[arg-type]  # coroutines only

    def _expect(self, recording: RecordingWriter) -> None:
        """The right offset or a wrong one."""

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
                    self.rules.writer_failed(recording.session, error, healthy=self.unhindered())
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
        await asyncio.sleep(0)  # what it resolved before is told in this turn or the next
        left = [sent.ident for sent in before if sent.result == "pending"]
        self.report.check("ends", not left, "flush of {} returned, {} are not acknowledged", self.host, left)

    async def _end(self, recording: RecordingWriter) -> None:
        roll = self.rng.random()
        if roll < 0.2:
            return  # left alone: a zombie that others take over from; the ending closes it
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


__all__ = ["OPEN_S", "REFUSALS", "RecordingWriter", "StreamEnded", "WriterActor", "full"]
