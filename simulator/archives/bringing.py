"""Actors that bring records in: imports of files, which are killed and go on, and bulk steps beside a writer."""

from __future__ import annotations

import json

from buckram.core.streams.external.imports import ImportColumns
from buckram.errors import (
    BuckramError,
    InvalidSegment,
    NoSuchStream,
    OpenSegment,
    StaleTransaction,
    StreamEnded,
)
from buckram.streams.maintain.import_sources import ImportSource
from buckram.streams.maintain.imports import import_files, plan_import
from simulator.archives.model import Stream, labelled
from simulator.archives.place import SCHEME, PlacedFile
from simulator.archives.stage import Actor, Stage
from simulator.engine.checkers.judge import describe


class Importer(Actor):
    """Imports sources of a few files of lines, range by range, until each is there as a whole."""

    died_as = "died while importing"
    first_s, pause_s = 0.6, 0.8
    steps = 300

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.job: tuple[Stream, str] | None = None
        self.tried = False

    async def act(self) -> None:
        if self.job is None or not self.job[0].usable:
            stream = self.choose(forks=0.2)
            if stream is None:
                return
            self.job, self.tried = (stream, self._source(stream)), False
        stream, url = self.job
        self.at_work(stream)
        source = ImportSource(url)
        try:
            work = await plan_import(
                self.streams, self.name_of(stream), source, "jsonl", ImportColumns(value="value"), range_bytes=120
            )
            if work.uid != stream.uid:
                self.job = None
                return
            if self.tried and work.done is not None:
                self.report.situation("import went on")
            self.tried = True
            assert self.client is not None
            report = await import_files(self.client, self.streams, work, source)
        except OpenSegment:
            self.report.situation("import met a writer")
            return
        except NoSuchStream:
            self.job = None
            return
        self.note(f"{report}")
        self.report.situation("imported")
        labels = stream.steps[url]
        self.report.check(
            "told", report.next_offset >= len(labels), "an import of {} rows reports {}", len(labels), report
        )
        stream.published[url] = -1
        self.job = None

    def _source(self, stream: Stream) -> str:
        """Make the files of a source whose rows are meant for this stream, and return where they are."""
        url = f"{SCHEME}://imports/{stream.uid}/{self.host}.{self.serial}"
        labels = stream.steps[url] = []
        for number in range(self.rng.choice((1, 2, 3))):
            lines = []
            for _ in range(self.rng.choice((1, 4, 9))):
                label = self.label("I")
                labels.append(label)
                self.stage.send(stream, label)
                lines.append(json.dumps({"value": labelled(label, 0).decode() + "x" * self.rng.choice((0, 20))}))
            data = ("\n".join(lines) + "\n").encode()
            self.place.files[f"{url}/{number:03d}.jsonl"] = PlacedFile(data, data)
        return url


class Publisher(Actor):
    """Publishes one version after another, each until it is published or refused, mostly beside a writer."""

    died_as = ""
    first_s, pause_s = 0.8, 0.6

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.version = self.attempt = 0

    async def act(self) -> None:
        name = self.plan.streams[0]
        self.attempt += 1
        try:
            bulk = await self.ns.bulk(name, application=self.host, version=self.version)
            stream = self.model.streams[bulk.uid]
            labels = [self.label("B") for _ in range(self.rng.choice((2, 3, 6)))]
            stream.steps[f"{self.version} {self.attempt}"] = labels
            for label in labels:
                self.stage.send(stream, label)
            ledger = await bulk.create_ledger()
            await ledger.append_many([labelled(label, 20) for label in labels])
            sealed = await ledger.close()
            live = stream.head is not None and stream.head.open_segment is not None
            beside = self.rng.random() < 0.8
            done = await bulk.publish([sealed], beside_writer=beside, seal_live=not beside)
        except (StaleTransaction, StreamEnded, NoSuchStream) as error:
            self.note(f"version {self.version}: {describe(error)}: {error}")
            self.version += 1
            return
        except (OpenSegment, InvalidSegment) as error:
            self.note(f"version {self.version}: {describe(error)}: {error}")
            return
        except BuckramError as error:
            self.note(f"version {self.version}: {describe(error)}: {error}")
            return
        self.note(f"version {self.version} of {stream.name} at {done.first_offset}: {labels}")
        stream.published[f"{self.version}"] = done.first_offset
        self.report.situation("bulk step beside a writer" if live and beside else "bulk step published")
        self.version += 1


__all__ = ["Importer", "Publisher"]
