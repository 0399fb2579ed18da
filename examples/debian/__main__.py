"""Runs the main job and prints it: find records, start bookies, write to streams, kill a bookie for good, let an empty
one take its place, count with Spark, whose checkpoints are on the cluster, kill its driver, go on in an empty
directory, check everything, offload what is sealed, check that again, and keep what was counted for each maintainer in
a replicated database whose leader is killed.

The last line is JSON. Exit code 0 only if every record came back exactly once with the same bytes and was counted once,
every ledger has all its copies, history and live records are what was written and counted, and both replicas of the
database have what Spark counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from buckram import connect
from buckram.cli.up.security_files import SecureDirectory, SecureStore
from buckram.errors import ConfigError, NoSuchStream
from buckram.launch.etcd_server import start_etcd
from buckram.launch.processes import BookieProcess, stop_all
from buckram.launch.zookeeper_server import start_zookeeper
from buckram.metadata.uri import init_cluster, open_store
from examples.debian import inputs, load, maintainers, plots
from examples.debian.driver import Driver, Work
from examples.debian.files import Files, checkpoint
from examples.debian.healing import DELAY_S, Autorecovery, healed
from examples.debian.history import History, offload
from examples.debian.load import CHANGELOGS, NAMESPACE, PACKAGES, Written
from examples.debian.progress import began, out, step, working
from examples.debian.queries import WINDOWS
from examples.debian.report import Check, Copies, Counts, Past, Report

BOOKIES = 3
VICTIM = 1
DEAD = f"bookie-{VICTIM + 1}"
KILL_AFTER = 1
"""The driver is killed when so many batches of a query are published."""
PATIENCE_S = 90.0
SERVER_SECONDS = 120.0


@dataclass
class Story:
    """What happened beside the records."""

    events: list[tuple[str, float]] = field(default_factory=list)
    batches_before: int = 0
    batches: int = 0
    state_bytes: int = 0
    """Of the queries' states, in their checkpoints."""
    streaming_s: float = 0.0
    killed_at: float = 0.0
    healed_s: float = 0.0
    unhealed: str = ""
    """What lacks copies at the end."""
    copies: Copies = field(default_factory=Copies)
    offloaded: History = field(default_factory=History)
    past: Past = field(default_factory=Past)
    database: maintainers.Outcome = field(default_factory=maintainers.Outcome)

    def event(self, name: str) -> None:
        self.events.append((name, time.time()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metadata-store", choices=("sqlite", "zookeeper", "zk", "etcd"), default="sqlite")
    parser.add_argument("--limit", type=int, help="at most so many records of each kind (for a quick try)")
    parser.add_argument("--secure", action="store_true", help="TLS, tokens and grants, as `buckram up --secure`")
    parser.add_argument("--plots", type=Path, default=Path("debian-report.png"), help="where the picture goes")
    options = parser.parse_args()
    if not inputs.is_debian():
        print("this is not Debian: there is no package index of apt and no Debian changelog to read", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="buckram-run-") as folder:
            return run(Path(folder), options.metadata_store, options.limit, options.plots, secure=options.secure)
    except ConfigError as error:  # no Java, for example
        print(error, file=sys.stderr)
        return 1


@contextlib.contextmanager
def metadata_store(kind: str, folder: Path, guard: SecureDirectory | None) -> Iterator[str]:
    """The URI of an empty store: a database file, or a server of ZooKeeper or etcd that runs as long as the job."""
    if kind == "sqlite":
        yield f"sqlite://{folder / 'metadata.db'}"
        return
    if guard is not None:
        inner = SecureStore(guard, kind)
        with inner.start(folder / kind, SERVER_SECONDS, lambda: False) as server:
            step(f"{kind} runs at {server.address}, with TLS and a user: process {server.pid}")
            os.environ.update(inner.settings())  # bookies and healing open it, and nobody else
            yield inner.uri(server)
        return
    if kind == "etcd":
        with start_etcd(folder / "etcd") as etcd:
            step(f"etcd runs at {etcd.address}: process {etcd.pid}")
            yield f"etcd://{etcd.address}/buckram"
        return
    with start_zookeeper(folder / "zookeeper") as server:
        step(f"ZooKeeper runs at {server.address}: process {server.pid}")
        yield f"zk://{server.address}/ledgers"


def run(folder: Path, store: str, limit: int | None, picture: Path, *, secure: bool = False) -> int:
    out.rule("[bold]Buckram: real records through Spark; a bookie and the driver are killed[/bold]")
    step(f"on {inputs.describe_machine()}")
    kinds = gather(folder, limit)
    if not any(kinds.values()):
        print("no records: apt has no index here and /usr/share/doc has no changelogs", file=sys.stderr)
        return 1
    written, story = Written(load.shares(kinds)), Story()
    guard = SecureDirectory(folder / "security") if secure else None
    with metadata_store(store, folder, guard) as uri:
        asyncio.run(prepare(uri, guard))
        found, ledgers = job(folder, uri, guard, written, story)
    return show(written, found, story, ledgers, picture)


def job(folder: Path, direct: str, guard: SecureDirectory | None, written: Written, story: Story) -> tuple[Report, int]:
    """`direct` is the URI of the store itself; with a guard everything but bookies and healing goes through bookies."""
    streams = {kind: written.streams(kind) for kind in (CHANGELOGS, PACKAGES)}
    bookies = [new_bookie(direct, folder, n, guard) for n in range(1, BOOKIES + 1)]
    drivers: list[Driver] = []
    if guard is not None:  # for this process and all that it starts: nobody enters as the bookies' own user
        os.environ.update({**guard.admin_settings(), "BUCKRAM_SOCKETS": "tcp"})
    autorecovery, files = Autorecovery(direct, folder), Files(direct, folder, guard)
    try:
        for bookie in bookies:
            bookie.start()
        for bookie in bookies:
            bookie.wait_ready()
        step(f"{BOOKIES} bookies run: processes {', '.join(str(b.pid) for b in bookies)}")
        uri = direct if guard is None else served_by(bookies)
        write(uri, written, bookies[VICTIM], story)
        replace_dead(direct, folder, bookies, guard)
        files.wait_ready()
        step(f"a gateway keeps Spark's checkpoints on the cluster, {files.checkpoints}: process {files.pid}")
        work = Work(uri, streams, files.checkpoints, files.spark_settings())
        stream(work, folder, written, story, drivers)
        heal(direct, story)
        expected = folder / "expected.parquet"
        load.save_expected(written.places, expected)
        found = as_report(busy(drivers[-1], "Spark compares every record", "tasks", "report", str(expected)))
        story.copies = Copies(**busy(drivers[-1], "Spark reads every copy on its bookie", "tasks", "copies"))
        move_away(uri, folder, written, story, drivers[-1], expected)
        said = busy(drivers[-1], "Spark counts for each maintainer", "tasks", "maintainers")
        parts = [(name, packages, entries) for name, packages, entries in said["parts"]]
        drivers[-1].kill()  # Spark's work is done
        story.database = asyncio.run(maintainers.keep(uri, folder, parts, step))
        return found, asyncio.run(count_ledgers(uri, written))
    finally:
        for driver in drivers:
            driver.kill()
        files.stop()
        autorecovery.stop()
        stop_all(bookies)


def new_bookie(direct: str, folder: Path, number: int, guard: SecureDirectory | None) -> BookieProcess:
    name = f"bookie-{number}"
    settings = {} if guard is None else guard.bookie_settings()
    return BookieProcess(direct, folder / name, bookie_id=name, environment=settings)


def served_by(bookies: Sequence[BookieProcess]) -> str:
    """The URI of processes that are not trusted with the metadata store."""
    places = [f"{bookie.ready.host}:{bookie.ready.port}" for bookie in bookies if bookie.ready is not None]
    uri = f"buckram+tls://{','.join(places)}/"
    step(f"clients and Spark enter with a token, through TLS: {uri}")
    return uri


def replace_dead(direct: str, folder: Path, bookies: list[BookieProcess], guard: SecureDirectory | None) -> None:
    """The dead one stays dead; a new bookie with an empty disk joins."""
    bookies.append(new_bookie(direct, folder, BOOKIES + 1, guard))
    name = f"bookie-{BOOKIES + 1}"
    bookies[-1].start()
    bookies[-1].wait_ready()
    step(f"{DEAD} stays dead; {name} joins with an empty disk as process {bookies[-1].pid}; copies begin "
         f"{DELAY_S} s after the loss")  # fmt: skip


def heal(uri: str, story: Story) -> None:
    """Wait for autorecovery, which has worked beside everything else."""
    with working(f"copies of what {DEAD} had are made"):
        story.unhealed = asyncio.run(healed(uri, DEAD, PATIENCE_S))
    story.healed_s = time.monotonic() - story.killed_at
    if story.unhealed:
        step(f"[bold red]NOT healed[/bold red]: {story.unhealed}")
    else:
        step(f"healed: no ledger names {DEAD} any more")


def move_away(uri: str, folder: Path, written: Written, story: Story, driver: Driver, expected: Path) -> None:
    """Offload what is sealed, and let Spark compare everything once more."""
    began, places = time.monotonic(), folder / "places.json"
    story.offloaded = asyncio.run(offload(uri, folder / "history", written.streams()))
    story.offloaded.save_places(places)
    step(f"offloaded {story.offloaded.records:,} records in {story.offloaded.segments} segments to Parquet files, "
         f"{story.offloaded.bytes / 1e6:.1f} MB, in {time.monotonic() - began:.1f} s")  # fmt: skip
    words = ("history", str(expected), str(places))
    story.past = Past(**busy(driver, "Spark compares history, files and live records", "tasks", *words))
    step(f"Spark read {story.past.history:,} records through history and {story.past.live:,} from bookies")


def gather(folder: Path, limit: int | None) -> dict[str, list[bytes]]:
    with working("reading apt's package index"):
        packages = inputs.packages(folder / "apt", step)[:limit]
    with working("reading changelogs"):
        changelogs = inputs.changelog_entries()[:limit]
    size = sum(map(len, packages)) + sum(map(len, changelogs))
    step(f"found {len(packages):,} packages and {len(changelogs):,} changelog entries, {size / 1e6:.1f} MB")
    return {PACKAGES: packages, CHANGELOGS: changelogs}


async def prepare(uri: str, guard: SecureDirectory | None) -> None:
    store = await open_store(uri)
    try:
        await init_cluster(store)
        if guard is not None:
            await guard.prepare(store)
    finally:
        await store.close()


async def count_ledgers(uri: str, written: Written) -> int:
    async with connect(uri) as client:
        sinks = [windows.sink for windows in WINDOWS if written.streams(windows.kind)]
        names = [name.partition("/")[2] for name in (*written.streams(), *sinks)]
        return await load.segments(client.namespace(NAMESPACE), names)


# -- writing ----------------------------------------------------------------------------------------------


def write(uri: str, written: Written, victim: BookieProcess, story: Story) -> None:
    """Half of all records as fast as it goes."""

    def kill() -> None:
        pid = victim.pid
        victim.kill()
        story.event("bookie killed")
        story.killed_at = time.monotonic()
        step(f"[bold red]kill -9 {pid}[/bold red]: {DEAD}, in the middle of it; writing goes on")

    total = sum(len(share.records) // 2 for share in written.shares)
    with working("writing", "records", whole=total) as far, asyncio.Runner(loop_factory=fast_loop) as runner:
        runner.run(load.burst(uri, written, kill, far.advance))
    size = written.bytes / written.burst_s / 1e6 if written.burst_s else 0.0
    step(
        f"wrote {written.burst:,} records to {len(written.shares)} streams (E=3 Qw=3 Qa=2) in {written.burst_s:.2f} s: "
        f"[bold]{written.records_per_s:,} records/s[/bold], {size:.0f} MB/s; then their writers died"
    )
    if written.degraded:
        step(f"{written.degraded} writers went on with two copies, because no fourth bookie exists")


def stream(work: Work, folder: Path, written: Written, story: Story, drivers: list[Driver]) -> None:
    """The other half steadily, while Spark counts and its driver is killed and started again."""
    started, uri = time.monotonic(), work.uri
    drivers.append(Driver(work, folder))

    def killed() -> None:
        said = starting(drivers[0])
        step(f"Spark {said['spark']} on Java {said['java']} counts by windows: process {drivers[0].pid}")
        with working("Spark counts, until a batch is published", "records taken", lambda: drivers[0].far):
            story.batches_before = asyncio.run(published(uri, KILL_AFTER, written))
        drivers[0].kill()
        story.event("driver killed")
        step(f"[bold red]kill -9 {drivers[0].pid}[/bold red]: the Spark driver and all it started, "
             f"after {story.batches_before} published batches")  # fmt: skip
        drivers.append(Driver(work, folder))
        starting(drivers[1])
        story.event("driver back")
        step(f"a new driver goes on from the checkpoints, in a directory that holds nothing: process {drivers[1].pid}")

    async def both() -> float:
        before_end = asyncio.get_running_loop().run_in_executor(None, killed)
        return await load.steady(uri, written, far.advance, before_end)

    total = sum(len(share.records) for share in written.shares) - written.burst
    with working("writing", "records", whole=total) as far, asyncio.Runner(loop_factory=fast_loop) as runner:
        seconds = runner.run(both())
    step(f"took the streams over from the dead writers in {seconds:.2f} s; sent {written.sent_again:,} records again, "
         f"{written.stored_again} of them were stored again")  # fmt: skip
    busy(drivers[1], "Spark counts the rest", "records taken", "finish")
    story.streaming_s = time.monotonic() - started
    kept = [asyncio.run(checkpoint(uri, kind)) for kind, names in work.streams.items() if names]
    story.batches = sum(one.batch + 1 for one in kept if one.batch is not None)
    story.state_bytes = sum(one.state_bytes for one in kept)
    step(f"all {len(written.places):,} records are written and counted, in {story.batches} micro-batches")


def starting(driver: Driver) -> dict[str, Any]:
    with working("Spark starts"):
        return driver.answer()


def busy(driver: Driver, title: str, what: str, *words: str) -> dict[str, Any]:
    """Ask the driver, and show how far Spark is until it answers."""
    with working(title, what, lambda: driver.far):
        return driver.ask(*words)


async def published(uri: str, batches: int, written: Written) -> int:
    """Wait until a query has published so many batches; how many are published in all then."""
    limit = time.monotonic() + PATIENCE_S
    async with connect(uri) as client:
        ns = client.namespace(NAMESPACE)
        while True:
            found: list[int] = []
            for windows in WINDOWS:
                with contextlib.suppress(NoSuchStream):
                    done = (await ns.info(windows.sink.partition("/")[2])).transactions
                    found += [transaction.version + 1 for transaction in done.values()]
            if max(found, default=0) >= batches or time.monotonic() > limit:
                return sum(found)
            await asyncio.sleep(0.1)


def fast_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


# -- what came of it --------------------------------------------------------------------------------------


def as_report(said: dict[str, Any]) -> Report:
    """From the driver's JSON."""
    pairs = {name: [tuple(row) for row in said[name]] for name in ("sections", "maintainers", "years", "seconds")}
    return Report(Check(**said["check"]), Counts(**said["counts"]), **pairs)


def show(written: Written, found: Report, story: Story, ledgers: int, picture: Path) -> int:
    check, counts = found.check, found.counts
    rate = round(check.records / check.seconds) if check.seconds else 0
    step(f"Spark read {check.records:,} records in {check.partitions} partitions: [bold]{rate:,} records/s[/bold]")
    if found.sections:
        out.print(side_by_side(found))
    if found.years:
        plots.bars(out, "changelog entries per year, by the streaming query", found.years)
    plots.save(picture, found.years, found.seconds, story.events)
    step(f"plots: {picture}")
    lost = check.lost + check.changed + counts.missing
    duplicated = check.duplicated + counts.surplus + written.stored_again
    good = lost == duplicated == 0 and check.records == counts.records == len(written.places)
    copies = story.copies
    whole = not story.unhealed and copies.bad == 0 < copies.replicas
    out.rule()
    if good:
        text = (f"each of {check.records:,} records came back exactly once with the same bytes, "
                f"and was counted exactly once in one of {counts.windows:,} windows")  # fmt: skip
        out.print(f"[bold green]{text}[/bold green]")
    else:
        out.print(
            f"[bold red]NOT what was written: {check.lost:,} lost, {check.changed:,} changed, {check.duplicated:,} "
            f"more than once or never acknowledged; {counts.missing:,} not counted, {counts.surplus:,} counted twice, "
            f"{written.stored_again} stored again[/bold red]"
        )
    if whole:
        out.print(
            f"[bold green]every one of {copies.ledgers:,} ledgers is at full replication: Spark read all of their "
            f"{copies.replicas:,} copies, {copies.entries:,} entries, and each is good[/bold green]"
        )
    else:
        out.print(
            f"[bold red]NOT at full replication: {copies.bad:,} of {copies.replicas:,} copies are bad or missing; "
            f"{story.unhealed}[/bold red]"
        )
    past = show_past(story)
    kept = show_database(story.database, found)
    figures = {
        "records": check.records, "lost": lost, "duplicated": duplicated, "killed_bookies": 1,
        "write_records_per_s": written.records_per_s, "spark_records_per_s": rate,
        "seconds": round(time.monotonic() - began, 1),
        "written": len(written.places), "changed": check.changed, "counted": counts.records, "windows": counts.windows,
        "killed_drivers": 1, "batches": story.batches, "sent_again": written.sent_again,
        "stored_again": written.stored_again, "streams": len(written.shares), "ledgers": ledgers,
        "bytes": written.bytes, "streaming_seconds": round(story.streaming_s, 1), "plots": str(picture),
        "healed": whole, "copies": copies.replicas, "bad_copies": copies.bad,
        "seconds_from_kill_to_healed": round(story.healed_s, 1), "state_bytes": story.state_bytes,
        "history": {
            "same": story.past.same, "records": story.past.history, "live": story.past.live,
            "segments": story.offloaded.segments, "bytes": story.offloaded.bytes,
        }, "database": story.database.figures(),
    }  # fmt: skip
    print(json.dumps(figures), flush=True)
    return 0 if good and whole and past and kept else 1


def show_past(story: Story) -> bool:
    """Whether history and live records are what was written and counted."""
    past = story.past
    if past.same:
        out.print(
            f"[bold green]{past.history:,} records of history and {past.live:,} live ones are the same that were "
            "written and that Spark counted before, read as streams and as Parquet files[/bold green]"
        )
    else:
        out.print(
            f"[bold red]NOT the same after the offload: {past.lost:,} lost, {past.changed:,} changed, "
            f"{past.surplus:,} too many, {past.unlike:,} other ones in files, {past.missing:,} not counted, "
            f"{past.recounted:,} counted twice; {past.history:,} in history[/bold red]"
        )
    return past.same


def show_database(kept: maintainers.Outcome, found: Report) -> bool:
    """Whether both replicas have what Spark counted."""
    complete = kept.packages + kept.entries == found.check.records
    if kept.good and complete:
        out.print(
            "[bold green]both replicas of the database, whose leader was killed, have the same bytes, and in them what "
            f"Spark counted: {kept.rows:,} maintainers with {kept.packages:,} packages and {kept.entries:,} changelog "
            "entries[/bold green]"
        )
    else:
        reasons = "; ".join(kept.faults) or ("equal" if kept.equal else f"digests {kept.digests}")
        out.print(
            f"[bold red]NOT the database that Spark counted: {kept.different:,} rows of {kept.rows:,} differ, "
            f"{kept.packages + kept.entries:,} of {found.check.records:,} records are in it; {reasons}[/bold red]"
        )
    return kept.good and complete


def side_by_side(found: Report) -> Table:
    grid = Table.grid(padding=(0, 4))
    grid.add_row(top("packages per section", found.sections), top("who maintains most packages", found.maintainers))
    return grid


def top(title: str, rows: Sequence[tuple[str, int]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, title_style="bold")
    table.add_column(overflow="ellipsis", no_wrap=True, min_width=len(title), max_width=36)
    table.add_column(justify="right", style="cyan")
    for name, count in rows:
        table.add_row(name, f"{count:,}")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
