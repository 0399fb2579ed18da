"""Output conventions: JSON and results on standard output, progress and remarks on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from buckram.cli.shared.stdout import obeyed
from buckram.core.streams.names import owner_of
from buckram.serve.json_views.ledgers import ledger_json
from buckram.types import LedgerMetadata


def emit(value: Mapping[str, Any]) -> None:
    """Print one JSON line at once, without control characters."""
    print(json.dumps(value, default=_plain).replace("\x7f", "\\u007f"), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(f"no JSON form for {type(value).__name__}")


def counted(number: int, noun: str) -> str:
    """1 segment, 2 segments; 1 entry, 2 entries."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1] + 'ies' if noun.endswith('y') else noun + 's'}"


class Degraded:
    """Says on standard error when what a writer appends gets fewer copies than it should, once each time it begins."""

    def __init__(self) -> None:
        self._said = False

    def look(self, writer: Degradable) -> None:
        if writer.degraded and not self._said:
            remark(f"degraded: {writer.degraded_reason}")
        self._said = writer.degraded


def remark(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need; numbers to the right, also where some cells are empty."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(name), *(len(row[n]) for row in texts)]) for n, name in enumerate(header)]
    right = [_numbers([row[n] for row in rows]) for n in range(len(header))]
    for row in [list(header), *texts]:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        print("  ".join(cells).rstrip())


def _numbers(column: Sequence[object]) -> bool:
    cells = [cell for cell in column if cell not in ("", None)]
    return bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)


def print_ledger(ledger_id: int, metadata: LedgerMetadata) -> None:
    shown = ledger_json(ledger_id, metadata)
    quorum = f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"
    print(f"ledger {ledger_id}: {shown['state']}, ensemble {quorum}, digest {shown['digest']}")
    if metadata.closed:
        size = counted(metadata.length or 0, "byte")
        empty = metadata.last_entry is None or metadata.last_entry < 0
        print("  no entries" if empty else f"  entries 0..{metadata.last_entry}, {size}")
    owner = owner_of(metadata.custom_metadata)
    if owner is not None:
        print(f"  belongs to stream {owner[0]}: `buckram stream read {owner[0]}` shows its records")
    for fragment in metadata.fragments:
        print(f"  from entry {fragment.first_entry}: {', '.join(fragment.ensemble)}")
    for key, value in shown["custom_metadata"].items():
        print(f"  {key} = {value}")


class Degradable(Protocol):
    """A writer, of a ledger or of a stream."""

    @property
    def degraded(self) -> bool: ...
    @property
    def degraded_reason(self) -> str: ...


@dataclass(slots=True)
class Bar:
    """Progress of a command that copies; does nothing if no bar is shown."""

    _show: Callable[[int, int], None] | None = None

    def advance(self, count: int, size: int = 0) -> None:
        """Add `count` entries or records of `size` bytes together."""
        if self._show is not None:
            self._show(count, size)

    @property
    def shown(self) -> bool:
        return self._show is not None


def input_size() -> int | None:
    """Bytes of standard input that are still to be read, where it is a file."""
    try:
        found = os.fstat(0)
        return found.st_size - os.lseek(0, 0, os.SEEK_CUR) if stat.S_ISREG(found.st_mode) else None
    except OSError:
        return None


def shows_bar(*, reading: bool) -> bool:
    """Return whether `transfer` shows a bar: at a terminal, unless results are printed there, or the input is typed
    there."""
    return sys.stderr.isatty() and not (sys.stdout if reading else sys.stdin).isatty()


@contextlib.contextmanager
def transfer(
    noun: str,
    *,
    total: int | None = None,
    count: int | None = None,
    show: bool = True,
    reading: bool = False,
    file: bool = False,
) -> Iterator[Bar]:
    """Yield a progress bar: count, bytes, rate and time left. `total`: bytes; `count`: entries or records.

    `reading`: results go to standard output, so there is no bar if that is a terminal; whether standard input is one
    does not matter. `file`: the data come from a file or go into one, so neither matters.
    """
    if not show or not (shows_bar(reading=reading) or (file and sys.stderr.isatty())):
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    by_bytes = count is None
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn() if by_bytes else MofNCompleteColumn(),
        TextColumn("{task.fields[rest]}"),
        TransferSpeedColumn() if by_bytes else TextColumn(""),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(file=obeyed(sys.stderr)), transient=True) as bar:
        task = bar.add_task(noun, total=total if by_bytes else count, rest="")
        began, done, moved = bar.get_time(), 0, 0

        def advance(more: int, size: int) -> None:
            nonlocal done, moved
            done, moved = done + more, moved + size
            seconds = max(bar.get_time() - began, 1e-3)
            if by_bytes:
                rest = f"{done} {noun}, {done / seconds:.0f}/s"
            else:
                rest = f"{done / seconds:.0f}/s, {moved / 1e6:.1f} MB, {moved / 1e6 / seconds:.1f} MB/s"
            bar.update(task, advance=size if by_bytes else more, rest=rest)

        yield Bar(advance)


class Advance(Protocol):
    def __call__(self, amount: int, whole: int | None = None, text: str = "", /) -> None:
        """Add `amount` to the progress; `whole` replaces the total and `text` the text behind the bar, where given."""
        ...


@contextlib.contextmanager
def progress(title: str, total: int | None, *, show: bool = True, rest: bool = False) -> Iterator[Advance]:
    """Yield a bar on standard error, only at a terminal; the value is called with how much more is done.

    `rest`: and with the total, which may grow, and what stands behind the bar.
    """
    if not show or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    more = (TextColumn("{task.fields[rest]}"),) if rest else ()
    with Progress(*columns, *more, console=Console(file=obeyed(sys.stderr)), transient=True) as bar:
        task = bar.add_task(title, total=total, rest="")

        def advance(amount: int, whole: int | None = None, text: str = "") -> None:
            bar.update(task, advance=amount, total=whole, rest=text)

        yield advance
