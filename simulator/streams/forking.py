"""An actor that forks streams, and writes, truncates and deletes the forks. Not here: the rules (`forked.py`)."""

from __future__ import annotations

from contextlib import suppress

from buckram.errors import BuckramError, NoSuchStream, OffsetOutOfRange, StreamExists
from buckram.streams.write.writer import engine_of
from simulator.engine.checkers.judge import describe
from simulator.streams.facts import REFUSED, StreamHistory, WriterSession
from simulator.streams.forked import live_forks
from simulator.streams.maintenance import Deleter
from simulator.streams.recording import RecordingWriter
from simulator.streams.stage import full

MOST = 3
"""Maximum number of forks at a time."""


class Forker(Deleter):
    """Forks streams and forks, at offsets of all kinds."""

    crashed = "crash while forking"
    pause_s = 1.5
    _made = 0
    _session: WriterSession | None = None

    async def work(self, stream: str) -> None:
        forks = live_forks(self.facts)
        how = self.rng.random()
        if forks and (how < 0.25 or len(forks) >= MOST):
            await self._delete(self.rng.choice(forks))
        elif forks and how < 0.5:
            await self._truncate(self.rng.choice(forks))
        else:
            sources = [full(stream), *(fork.name for fork in forks)]
            await self._fork(self.rng.choice(sources).partition("/")[2], stream)

    async def _fork(self, source: str, stream: str) -> None:
        history = self.facts.current.get(full(source))
        if history is None or history.head is None or history.head_removed:
            return
        earliest = history.head.earliest
        at = self.rng.randrange(earliest, max(history.top, earliest) + 1) if self.rng.random() < 0.8 else None
        self._made += 1
        name = f"{stream}-{self.host}-{self._made}"
        try:
            made = await self.ns.fork_stream(source, name, offset=at)
        except (OffsetOutOfRange, NoSuchStream, StreamExists) as error:
            self.note(f"no fork of {source} at {at}: {describe(error)}: {error}")
            return
        self.note(f"{name} forked: {made}")
        self.report.check("forked", at in (None, made.offset), "fork of {} at {} is {}", source, at, made)
        if self.rng.random() < 0.6:
            await self._append(name, made.producers)

    async def _append(self, name: str, producers: bool) -> None:
        """Write the fork. With `producers` it must recognise producers' records from before its offset."""
        session = self._session = self.rules.new_session(self.host)
        try:
            writer = await self.ns.writer(name, create=False)
        except BuckramError as error:
            session.lost = True
            self.note(f"no writer of {name}: {describe(error)}: {error}")
            return
        self.rules.writer_opened(session, engine_of(writer)._claim.uid, writer.epoch, writer.next_offset)
        recording = RecordingWriter(self, name, writer, session)
        try:
            if producers:
                await self._retry_stored(recording)
            await recording.append_many([recording.fresh(20) for _ in range(3)])
            await writer.close()
        finally:
            session.lost = True

    async def _retry_stored(self, recording: RecordingWriter) -> None:
        """Repeat the last record of each producer that the fork has of its source: it is stored already."""
        history = recording.session.history
        assert history is not None
        for producer in self.stage.producers:
            stored = [int(i.partition("#")[2]) for i in history.offset_of if i.startswith(f"{producer.name}#")]
            if not stored:
                continue
            ident, content = producer.content(max(stored))
            await recording.append(ident, content)
            self.report.situation("retry in a fork")
            self.report.check(
                "idempotent",
                self.facts.sent[ident][-1].result != REFUSED,
                "{} is below the offset of fork {}, whose writer refuses it",
                ident,
                history.name,
            )

    def died(self) -> None:
        if self._session is not None:
            self._session.lost = True
            self.rules.unknown(self._session.order)

    async def _truncate(self, history: StreamHistory) -> None:
        assert history.head is not None
        earliest, name = history.head.earliest, history.name.partition("/")[2]
        offset = self.rng.randrange(earliest, max(history.head.end, earliest) + 1)
        history.requested_truncations[offset] = None
        await self.ns.truncate(name, before=offset)
        self.report.situation("fork truncated")

    async def _delete(self, history: StreamHistory) -> None:
        with suppress(NoSuchStream):
            await self.ns.delete(history.name.partition("/")[2])
        self.check_deleted(history)
        self.report.situation("fork deleted")


__all__ = ["Forker"]
