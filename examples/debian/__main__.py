"""Runs the main job and prints it: find records, start bookies, write to streams, kill a bookie, take the streams
over, read back with Spark, check.

The last line is JSON. Exit code 0 only if every record came back exactly once with the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from buckram.errors import ConfigError
from buckram.metadata.uri import init_cluster, open_store
from buckram.processes import BookieProcess, stop_all
from buckram.zookeeper_server import start_zookeeper
from examples.debian import inputs, load, report
from examples.debian.load import Written
from examples.debian.report import Report

BOOKIES = 3
VICTIM = 1
BAR_WIDTH = 60
# Results go to standard output at a width that does not depend on the terminal's.
out = Console(width=100, highlight=False)
began = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metadata-store", choices=("sqlite", "zk"), default="sqlite")
    parser.add_argument("--limit", type=int, help="at most so many records of each kind (for a quick try)")
    options = parser.parse_args()
    if not inputs.is_debian():
        print("this is not Debian: there is no package index of apt and no Debian changelog to read", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="buckram-run-") as folder:
            return run(Path(folder), options.metadata_store, options.limit)
    except ConfigError as error:  # no Java, for example
        print(error, file=sys.stderr)
        return 1


@contextlib.contextmanager
def metadata_store(kind: str, folder: Path) -> Iterator[str]:
    """The URI of an empty store: a database file, or a ZooKeeper server that runs as long as the job."""
    if kind == "sqlite":
        yield f"sqlite://{folder / 'metadata.db'}"
        return
    with start_zookeeper(folder / "zookeeper") as server:
        step(f"ZooKeeper runs at {server.address}: process {server.pid}")
        yield f"zk://{server.address}/ledgers"


def step(text: str) -> None:
    out.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}")


def run(folder: Path, store: str, limit: int | None) -> int:
    out.rule("[bold]Buckram: real records, three bookies, one of them killed[/bold]")
    step(f"on {inputs.describe_machine()}")
    kinds = gather(folder, limit)
    if not any(kinds.values()):
        print("no records: apt has no index here and /usr/share/doc has no changelogs", file=sys.stderr)
        return 1
    with metadata_store(store, folder) as uri:
        asyncio.run(prepare(uri))
        written, found = job(folder, uri, kinds)
    return show(written, found)


def job(folder: Path, uri: str, kinds: dict[str, list[bytes]]) -> tuple[Written, Report]:
    bookies = [BookieProcess(uri, folder / f"bookie-{n}", bookie_id=f"bookie-{n}") for n in range(1, BOOKIES + 1)]
    try:
        for bookie in bookies:
            bookie.start()
        for bookie in bookies:
            bookie.wait_ready()
        step(f"{BOOKIES} bookies run: processes {', '.join(str(b.pid) for b in bookies)}")
        written = write(uri, kinds, bookies[VICTIM])
        bookies[VICTIM].start()
        bookies[VICTIM].wait_ready()
        step(f"bookie-{VICTIM + 1} is back as process {bookies[VICTIM].pid}")
        seconds = asyncio.run(load.take_over(uri, written))
        step(f"took every stream over from its dead writer and sealed it in {seconds:.2f} s")
        expected = folder / "expected.parquet"
        load.save_expected(written.places, expected)
        step("starting Spark")
        packages, changelogs = (written.streams.get(kind, []) for kind in ("packages", "changelogs"))
        return written, report.run(uri, packages, changelogs, expected, step)
    finally:
        stop_all(bookies)


def gather(folder: Path, limit: int | None) -> dict[str, list[bytes]]:
    packages = inputs.packages(folder / "apt", step)[:limit]
    changelogs = inputs.changelog_entries()[:limit]
    size = sum(map(len, packages)) + sum(map(len, changelogs))
    step(f"found {len(packages):,} packages and {len(changelogs):,} changelog entries, {size / 1e6:.1f} MB")
    return {"packages": packages, "changelogs": changelogs}


async def prepare(uri: str) -> None:
    store = await open_store(uri)
    try:
        await init_cluster(store)
    finally:
        await store.close()


def write(uri: str, kinds: dict[str, list[bytes]], victim: BookieProcess) -> Written:
    total = sum(map(len, kinds.values()))

    def kill() -> None:
        pid = victim.pid
        victim.kill()
        step(f"[bold red]kill -9 {pid}[/bold red]: bookie-{VICTIM + 1}, with half acknowledged; writing goes on")

    columns = (TextColumn("  writing"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=total)
        with asyncio.Runner(loop_factory=fast_loop) as runner:
            written = runner.run(load.write(uri, kinds, kill, lambda n: bar.advance(task, n)))
    streams, speed = sum(map(len, written.streams.values())), written.bytes / written.seconds / 1e6
    step(
        f"wrote {len(written.places):,} records to {streams} streams (E=3 Qw=3 Qa=2) in {written.seconds:.2f} s: "
        f"[bold]{written.records_per_s:,} records/s[/bold], {speed:.0f} MB/s"
    )
    if written.degraded:
        step(f"{written.degraded} writers went on with two copies, because no fourth bookie exists")
    return written


def fast_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def show(written: Written, found: Report) -> int:
    check = found.check
    rate = round(check.records / check.seconds) if check.seconds else 0
    if found.sections:
        out.print(side_by_side(found))
    if found.years:
        plot(found.years)
    good = check.good and check.records == len(written.places)
    out.rule()
    if good:
        text = f"each of {check.records:,} records came back exactly once with the same bytes"
        out.print(f"[bold green]{text}[/bold green]")
    else:
        out.print(
            f"[bold red]NOT what was written: {check.lost:,} lost, {check.changed:,} changed, "
            f"{check.duplicated:,} more than once or never acknowledged[/bold red]"
        )
    figures = {
        "records": check.records,
        "lost": check.lost + check.changed,
        "duplicated": check.duplicated,
        "killed_bookies": 1,
        "write_records_per_s": written.records_per_s,
        "spark_records_per_s": rate,
        "seconds": round(time.monotonic() - began, 1),
        "written": len(written.places),
        "changed": check.changed,
        "streams": sum(map(len, written.streams.values())),
        "ledgers": written.segments,
        "bytes": written.bytes,
    }
    print(json.dumps(figures), flush=True)
    return 0 if good else 1


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


def plot(years: Sequence[tuple[int, int]]) -> None:
    out.print("\n [bold]changelog entries per year[/bold]")
    width = bar_scale(max(count for _, count in years))
    for year, count in years:
        out.print(f"  {year} [blue]{width(count)}[/blue] {count:,}")


def bar_scale(most: int) -> Callable[[int], str]:
    """Bars in eighths of a character, the longest BAR_WIDTH wide."""
    eighths = " ▏▎▍▌▋▊▉"

    def bar(count: int) -> str:
        whole, part = divmod(round(count * BAR_WIDTH * 8 / most), 8)
        return "█" * whole + (eighths[part] if part else "")

    return bar


if __name__ == "__main__":
    raise SystemExit(main())
