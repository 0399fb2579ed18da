"""The end of a life of archives: all is healed, each stream is written once more and cleaned; then streams, forks,
exports and what is left over are compared with the model.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from buckram.core.streams.metadata.head import HISTORY
from buckram.errors import BuckramError
from simulator.archives.files import Unsound, check_copy, copies_in, parse_name, records_in
from simulator.archives.model import Exported, Stream, label_of
from simulator.archives.moving import Exporter
from simulator.archives.reading import take
from simulator.archives.removing import BY_AGE, Deleter, JanitorActor
from simulator.archives.stage import Actor, Stage, full
from simulator.archives.writing import WriterActor
from simulator.engine.checkers.judge import describe
from simulator.engine.faults import FaultRunner
from simulator.engine.finish import Finish

SETTLE_S = 15.0


class Ending(Finish):
    """Ends one life of archives."""

    def __init__(self, stage: Stage, faults: FaultRunner, actors: list[asyncio.Task[None]]) -> None:
        super().__init__(stage, faults)
        self.stage, self.plan, self.actors = stage, stage.archives, actors
        self.model, self.place = stage.model, stage.place

    async def run(self) -> None:
        self.stage.over = True
        self.place.heal()
        await self.heal()
        pending = (await asyncio.wait(self.actors, timeout=self.deadline_s + SETTLE_S))[1] if self.actors else set()
        names = sorted(task.get_name() for task in pending)
        self.report.check("ends", not pending, "{} are not done although everything was healed", names)
        for task in self.actors:
            if task.done():
                task.result()
        self._count_faults()
        await self.within(self._make_missing(), "making the streams that are gone")
        for stream in self.model.living():
            await self.within(self._write(stream), f"the last writer of {stream.name}")
        for stream in self.model.living():
            await self.within(self._export(stream), f"an export of {stream.name}")
        await self.within(self._clean(), "the janitor")
        for stream in self.model.living():
            await self.within(self._audit(stream), f"reading {stream.name}")
        self._check_exports()
        self._check_space()
        if self.plan.seed % 3 == 0:
            await self.within(self._delete_all(), "deleting everything")
            await self.within(self._clean(), "the janitor")
            self._check_space()

    def _count_faults(self) -> None:
        names = {
            "write failed": "the place failed",
            "read failed": "the place failed",
            "away": "the place was away",
            "late": "the place was late",
            "bytes changed": "the place changed bytes",
            "listed late": "the place listed late",
            "names lost": "the place lost what was not synced",
            "bytes lost": "the place lost what was not synced",
            "died": "died in the place",
        }
        for met in self.place.faults_met:
            self.report.situation(names[met])

    async def _up(self, actor: Actor) -> None:
        if not await actor.up(20):
            self.report.violate("ends", "no client can be started although everything was healed")

    # -- writing and cleaning

    async def _make_missing(self) -> None:
        deleter = Deleter(self.stage, "f1")
        await self._up(deleter)
        for name in self.plan.streams:
            stream = self.model.current[full(name)]
            if not stream.usable:
                if not stream.removed:
                    await deleter.inside(deleter.delete(stream), "delete")
                await deleter.inside(deleter.make_anew(name), "create")

    async def _write(self, stream: Stream) -> None:
        writer = WriterActor(self.stage, "f2")
        await self._up(writer)
        writer.serial = 1000 * len(self.model.sent)
        for left in (3, 2, 1, 0):
            try:
                good = await writer.inside(writer.write(stream, 2), "last writer")
                self.report.check("ends", good, "{} cannot be written although all is well", stream.name)
                return
            except BuckramError as error:
                writer.note(f"{stream.name}: {describe(error)}: {error}")
                if not left or not error.retryable:
                    raise
                await asyncio.sleep(2.0)

    async def _export(self, stream: Stream) -> None:
        """Go on with an export where there is one: it takes away what was left, so each record is there once."""
        if any(export.stream is stream for export in self.model.exports.values()):
            exporter = Exporter(self.stage, "f4")
            await self._up(exporter)
            await exporter.inside(exporter.export(stream), "last export")

    async def _clean(self) -> None:
        """Clean until what goes by age has gone, too, and check that the janitor has no problems."""
        janitor = JanitorActor(self.stage, "j9")
        janitor.settings = replace(janitor.settings, join_at=0)
        await self._up(janitor)
        pause_s = self.plan.cluster.pace.deadline_s(self.world.metadata.session_timeout_s + 4.0, metadata_requests=3)
        for _ in range(3):
            await asyncio.sleep(pause_s)
            self.stage.began["j9"] = self.world.loop.time()
            report = await janitor.inside(janitor.clean(), "janitor")
            problems = [problem for problem in report.problems if not problem.startswith(BY_AGE)]
            self.report.check("ends", not problems, "the janitor has problems although all is well: {}", problems)

    # -- what is read

    async def _audit(self, stream: Stream) -> None:
        reader = Actor(self.stage, "f3")
        await self._up(reader)
        await reader.inside(self._read_all(reader, stream), "audit")

    async def _read_all(self, actor: Actor, stream: Stream) -> None:
        found: dict[int, str] = {}
        for left in (2, 1, 0):
            found.clear()
            reader = actor.ns.read(actor.short(stream))
            try:
                await reader.open()
                while (batch := await reader.next_batch()) is not None:
                    records = batch.records()
                    take(actor, stream, batch.first_offset, records)
                    found |= {record.offset: label_of(record.value) for record in records}
                break
            except BuckramError as error:
                actor.note(f"{stream.name}: {describe(error)}: {error}")
                if not left or not error.retryable:
                    raise
                await asyncio.sleep(1.0)
            finally:
                await reader.close()
        self._judge(stream, found)
        await self._read_some(actor, stream, found)

    async def _read_some(self, actor: Actor, stream: Stream, found: dict[int, str]) -> None:
        """Read single records, which are searched for in their segments."""
        for offset in actor.rng.sample(list(found), min(6, len(found))):
            record = await actor.ns.get(actor.short(stream), offset)
            right = record.offset == offset and label_of(record.value) == found[offset]
            self.report.check("kept", right, "get({}) of {} is {!r}", offset, stream.name, record)

    def _judge(self, stream: Stream, found: dict[int, str]) -> None:
        report, head = self.report, stream.head
        assert head is not None
        offsets = list(found)
        report.check(
            "once",
            offsets == list(range(head.earliest, head.end)),
            "{} has {} to {}, {} of them, the list says {} to {}",
            stream.name,
            offsets[:1],
            offsets[-1:],
            len(offsets),
            head.earliest,
            head.end,
        )
        for offset, label in found.items():
            acked = stream.owner(offset).acked.get(offset)
            if acked is not None:
                report.check(
                    "kept", acked == label, "{} of {} is {}, acknowledged was {}", offset, stream.name, label, acked
                )
        for one in stream.lineage():
            top = stream.at if one is not stream else 1 << 60
            for offset, label in one.acked.items():
                if head.earliest <= offset < top and stream.owner(offset) is one:
                    report.check("kept", offset in found, "{} at {} of {} is lost", label, offset, stream.name)
        self._judge_steps(stream, found)

    def _judge_steps(self, stream: Stream, found: dict[int, str]) -> None:
        """Check what bulk steps and imports have brought into this stream."""
        report, earliest = self.report, stream.earliest
        places = stream.offset_of
        there: dict[str, str] = {}
        for step, labels in stream.steps.items():
            known = [places[label] for label in labels if label in places and places[label] >= earliest]
            imported = "://" in step
            rule = "imported" if imported else "published"
            report.check(rule, known == sorted(known), "the records of {} in {} are at {}", step, stream.name, known)
            done = stream.published.get(step) is not None
            if imported and done:
                lost = [label for label in labels if label not in places]
                whole = not lost or earliest > 0
                report.check(rule, whole, "of {} in {} there is no {}", step, stream.name, lost)
            if not imported and known:
                version = step.split()[0]
                report.check(
                    rule,
                    version not in there,
                    "{} of {} is there as {} and {}",
                    version,
                    stream.name,
                    there.get(version),
                    step,
                )
                there[version] = step
                first = stream.published.get(version)
                due = [label for label in labels if first is None or first + labels.index(label) >= earliest]
                wrong = [
                    label for label in due if first is not None and places.get(label) != first + labels.index(label)
                ]
                report.check(rule, not wrong, "{} of {} lacks {} from {} on", step, stream.name, wrong, first)

    # -- exports

    def _check_exports(self) -> None:
        for export in self.model.exports.values():
            try:
                found = self._exported(export)
            except Unsound as unsound:
                self.report.check("exported", False, "{}: {}", export.directory, unsound)
                continue
            self._judge_export(export, found)

    def _exported(self, export: Exported) -> list[tuple[int, str]]:
        """Return what is published, and what is history in the same directory, in the order of offsets."""
        bases = copies_in(self.place, export.directory)
        rows = {
            row.ledger: row
            for row in export.stream.needed()
            if row.kind == HISTORY and row.offloaded is not None and row.offloaded.location == export.directory
        }
        found: list[tuple[int, str]] = []
        for copy in (*export.copies, *rows):
            if copy not in bases:
                raise Unsound(f"copy {copy} has no manifest")
            manifest = check_copy(self.place, export.directory, bases[copy], copy, None)
            found += records_in(self.place, export.directory, manifest)
        return sorted(found)

    def _judge_export(self, export: Exported, found: list[tuple[int, str]]) -> None:
        stream, report = export.stream, self.report
        offsets = [offset for offset, _ in found]
        report.check(
            "exported", len(offsets) == len(set(offsets)), "{} has records twice: {}", export.directory, offsets
        )
        for offset, label in found:
            known = stream.record(offset)
            report.check(
                "exported",
                known in (None, label),
                "{} has {} at {}, the stream has {}",
                export.directory,
                label,
                offset,
                known,
            )
        if stream.alive:
            missing = [offset for offset in range(stream.earliest, export.next) if offset not in set(offsets)]
            report.check("exported", not missing, "{} lacks {} below {}", export.directory, missing, export.next)

    # -- what is left over

    def _check_space(self) -> None:
        model, report = self.model, self.report
        living = [stream for stream in model.streams.values() if stream.alive]
        used: dict[int, str] = {}
        for stream in living:
            used |= {row.ledger: stream.uid for row in stream.needed() if row.kind != HISTORY}
        for ledger, uid in model.owned.items():
            report.check("space", ledger in used, "ledger {} of stream {} is left behind", ledger, uid)
        for ledger, holders in model.shared.items():
            for uid in holders:
                needs = any(stream.uid == uid and ledger in _ledgers(stream) for stream in living)
                report.check("space", needs, "{} holds ledger {}, which it does not list", uid, ledger)
        for (uid, ledger), purpose in model.intents.items():
            report.check("space", False, "the intent ({}) of {} of stream {} is left", purpose, ledger, uid)
        for stream in model.streams.values():
            if stream.removed:
                part = f"/streams/data/{stream.uid}"
                known = [key for key in self.world.metadata._values if part in key]
                left = [key for key in known if self.world.metadata.peek(key) is not None]
                report.check("space", not left, "keys of {} {} are left: {}", stream.name, stream.uid, left)
            else:
                report.check("space", stream.usable, "{} {} is left half made or half deleted", stream.name, stream.uid)
        self._check_files()

    def _check_files(self) -> None:
        for path in self.place.files:
            name = parse_name(path)
            if name is None:
                continue
            export = self.model.exports.get(name.directory)
            needed = self.model.lists_files(name.directory, name.copy) is not None
            published = export is not None and name.copy in export.copies
            excused = any(f"-{name.copy:019d}" in hidden for hidden in self.place.hidden)
            self.report.check(
                "space", ((needed or published) and name.kind != "unfinished") or excused, "{} is left behind", path
            )

    async def _delete_all(self) -> None:
        deleter = Deleter(self.stage, "d9")
        await self._up(deleter)
        streams = self.model.living()
        deleter.rng.shuffle(streams)
        for stream in streams:
            done = await deleter.inside(deleter.delete(stream), "delete")
            self.report.check("ends", done, "{} cannot be deleted although all is well", stream.name)


def _ledgers(stream: Stream) -> list[int]:
    return [row.ledger for row in stream.needed()]


__all__ = ["Ending"]
