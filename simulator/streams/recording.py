"""An open writer whose appends and results are reported to the rules.

Not here: when to open, append and close (`writing.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from buckram.core.streams.records.producers import UNKNOWN_OFFSET
from buckram.errors import (
    BuckramError,
    BufferFull,
    InvalidArgument,
    OffsetMismatch,
    OutOfOrderSequence,
    ProducerForgotten,
    RecordTooLarge,
    TxidOutOfOrder,
    WriterFailed,
    WriterLost,
)
from buckram.streams.write.writer import StreamWriter
from simulator.engine.checkers.judge import describe
from simulator.streams.facts import Content, SentRecord, WriterSession
from simulator.streams.stage import Actor, Producer

REFUSALS = (
    OffsetMismatch,
    OutOfOrderSequence,
    ProducerForgotten,
    RecordTooLarge,
    TxidOutOfOrder,
    BufferFull,
    InvalidArgument,
)
"""Errors which mean that nothing was written."""


class RecordingWriter:
    """An open writer whose appends and their results are reported to the rules."""

    def __init__(self, actor: Actor, stream: str, writer: StreamWriter, session: WriterSession) -> None:
        self.actor, self.stream, self.writer, self.session = actor, stream, writer, session
        self._serial = 0

    def _note(self, text: str) -> None:
        self.actor.note(f"{self.stream} {self.session.number}: {text}")

    def fresh(self, size: int | None = None, **more: object) -> tuple[str, Content]:
        """Return a new record of this session; some have no value."""
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

    # -- calls, which report each append in the turn in which they make it

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
            self._report_failed(sent, error)
        else:
            self._report_stored(sent, [offset], expect)

    def append_nowait(self, ident: str, content: Content) -> None:
        sent = self._submit([ident], [content])
        more: dict[str, Any] = {
            "key": content.key,
            "headers": content.headers,
            "timestamp": content.timestamp,
            "txid": content.txid,
        }
        try:
            # Values without anything else take another path in the writer.
            future = self.writer.append_nowait(content.value, **{name: it for name, it in more.items() if it})
        except BuckramError as error:
            self._report_failed(sent, error)
            return
        future.add_done_callback(lambda done: self._report_done(sent, done))

    def _report_done(self, sent: Sequence[SentRecord], done: asyncio.Future[int]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, BuckramError):
            self._report_failed(sent, error)
        elif error is None and not done.cancelled():
            self._report_stored(sent, [done.result()])

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
            self._report_failed(sent, error)
            return
        repeated = len(sent) - len(offsets)
        self.actor.report.check(
            "idempotent" if first.producer else "stable",
            repeated == 0 or first.producer is not None,
            "{} records became {} offsets",
            len(sent),
            len(offsets),
        )
        if repeated:
            self.actor.rules.already_stored(sent[:repeated])
        self._report_stored(sent[repeated:], list(offsets), expect)

    def _submit(self, idents: Sequence[str], contents: Sequence[Content]) -> list[SentRecord]:
        return self.actor.facts.submit(self.session, idents, contents)

    def _report_stored(self, sent: Sequence[SentRecord], offsets: Sequence[int], expect: int | None = None) -> None:
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

    def _report_failed(self, sent: Sequence[SentRecord], error: BuckramError) -> None:
        self._note(f"{sent[0].ident} and {len(sent) - 1} more failed: {describe(error)}: {error}")
        if isinstance(error, REFUSALS):
            self.actor.rules.refused(sent)
        else:
            self.actor.rules.unknown(sent)
        if isinstance(error, WriterLost) and not self.session.lost:
            self.actor.report.situation("writer lost the stream")
            self.actor.rules.writer_lost(self.session, error)
        elif isinstance(error, WriterFailed):
            self.actor.rules.writer_failed(self.session, error, healthy=self.actor.undisturbed())

    # -- several records

    async def produce(self, producer: Producer, count: int, *, one_by_one: bool) -> None:
        """Append the next `count` records of the producer, from the first that was not acknowledged, in order."""
        first = producer.acked + 1
        if first <= producer.sent and self.actor.rng.random() < 0.3:
            first = max(0, first - 1)  # repeat one that was acknowledged
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
        """Append a record as a faulty application that skips a sequence, which must be refused.

        If it was accepted, the skipped record would be taken for a retry and lost.
        """
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


__all__ = ["REFUSALS", "RecordingWriter"]
