"""A bulk publisher: ledgers that it writes become segments of a stream in one step, repeated until it is done."""

from __future__ import annotations

import asyncio

from buckram.errors import BuckramError, InvalidSegment, NoSuchStream, OpenSegment, StaleTransaction, StreamEnded
from buckram.streams.write.bulk import Bulk, SealedLedger
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.streams.facts import BulkAttempt, Content
from simulator.streams.stage import Actor, Stage, full

WORK_S = 200.0
"""Deadline of one bulk step, seconds: it may wait three times for a writer that does not answer."""


class Publisher(Actor):
    """An application that publishes one version after another, and repeats each until it is published or refused."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.version = self.attempt = 0
        self.beside = False

    async def run(self) -> None:
        await self.nap(1.0)
        stream = self.plan.streams[0]
        while not self.stage.over and self.version < 4 and await self.up():
            try:
                crashing = self.maybe_crash(260)
                async with asyncio.timeout(WORK_S):
                    done = await self.inside(self.step(stream), "bulk step")
                if crashing:
                    self.no_crash()
                self.version += done
            except Died:
                self.note("died")
                self.report.situation("crash in a bulk step")
            except TimeoutError:
                self.report.check("ends", False, "{} is not done within {} s", self.host, WORK_S)
            self.attempt += 1
            if self.attempt > 6:
                self.version, self.attempt = self.version + 1, 0
            await self.nap(1.0)

    async def step(self, stream: str, *, seal_live: bool | None = None, beside: bool | None = None) -> bool:
        """Make one attempt, and return whether this version is decided.

        `seal_live`: also with an open segment; `beside`: also beside a writer, who goes on then.
        """
        self.facts.sealers[self.host] = None
        drawn = self.rng.random() if seal_live is None else 1.0
        sealing = drawn < 0.5 if seal_live is None else seal_live
        self.beside = not sealing and (drawn < 0.85 if beside is None else beside)
        try:
            bulk = await self.ns.bulk(stream, application=self.host, version=self.version)
            step = BulkAttempt(self.host, self.version, self.attempt)
            history = self.facts.histories[bulk.uid]
            sealed = [await self._ledger(bulk, step, n) for n in range(self.rng.choice((1, 2, 3)))]
            history.steps.append(step)
            if self.attempt:
                self.report.situation("bulk step retried")
            return await self._publish(bulk, step, sealed, sealing, full(stream))
        except (StaleTransaction, StreamEnded, NoSuchStream) as error:
            self.note(f"version {self.version}: {describe(error)}: {error}")
            return True
        except BuckramError as error:
            self.note(f"version {self.version}, attempt {self.attempt}: {describe(error)}: {error}")
            return False

    async def _ledger(self, bulk: Bulk, step: BulkAttempt, number: int) -> SealedLedger:
        ledger = await bulk.create_ledger()
        idents: list[str] = []
        for part in range(self.rng.choice((0, 1, 1, 2))):
            values, times = [], []
            for n in range(self.rng.choice((1, 3, 8))):
                ident = f"B{self.host}.{step.version}.{step.attempt}/{number}.{part}.{n}"
                value = f"{ident}|".encode() + bytes(self.rng.choice((0, 30, 400)))
                time = self.rng.choice((None, 10**12))
                self.facts.bulk[ident] = Content(value, timestamp=time)
                idents.append(ident)
                values.append(value)
                times.append(time)
            await ledger.append_many(values, timestamps=times)
        step.ledgers.append((ledger.ledger_id, idents))
        return await ledger.close()

    async def _publish(
        self, bulk: Bulk, step: BulkAttempt, sealed: list[SealedLedger], sealing: bool, name: str
    ) -> bool:
        history = self.facts.histories[bulk.uid]
        live, before = history.head is not None and history.head.open_segment is not None, history.head
        for left in (2, 1, 0):
            try:
                done = await bulk.publish(sealed, seal_live=sealing, beside_writer=self.beside)
                break
            except (OpenSegment, InvalidSegment, StaleTransaction, StreamEnded, NoSuchStream):
                raise
            except BuckramError as error:
                self.note(f"publish failed: {describe(error)}: {error}")
                if not left:
                    raise
        step.published = range(done.first_offset, done.next_offset)
        self.note(f"{name}: version {step.version} at {step.published}")
        self.report.check("bulk", done.version == step.version, "publishing version {} returned {}", step.version, done)
        if live and sealing:
            self.report.situation("bulk step sealed a live segment")
        after = history.head
        if self.beside and before and after and before.writer and before.writer == after.writer:
            self.report.situation("bulk step beside a writer")
        return True


__all__ = ["Publisher"]
