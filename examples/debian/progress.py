"""What the job shows while it works: steps with the time since its start, and how far a long one is.

Steps are results and go to standard output. How far something is goes to standard error: at a terminal as a bar that is
drawn again and again, into a log as a line every few seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

DRAWN_EVERY_S, LOGGED_EVERY_S = 0.25, 5.0
# Results go to standard output at a width that does not depend on the terminal's.
out = Console(width=100, highlight=False)
began = time.monotonic()


@dataclass
class Far:
    """How far something is; `whole` is 0 where nobody knows."""

    done: int = 0
    whole: int = 0

    def advance(self, count: int) -> None:
        self.done += count

    def __str__(self) -> str:
        return f"{self.done:,} of {self.whole:,}" if self.whole else f"{self.done:,}" if self.done else ""


class _Bars:
    """All bars of a terminal, drawn while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: Progress | None = None
        self._count = 0

    @property
    def console(self) -> Console | None:
        """Where lines are to be printed, so that they come above the bars."""
        shown = self._shown
        return None if shown is None else shown.console

    @contextmanager
    def one(self, title: str, what: str) -> Iterator[Callable[[Far], None]]:
        with self._lock:
            if self._shown is None:
                columns = (TextColumn("         "), SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30),
                           TextColumn("{task.fields[far]}"), TimeElapsedColumn())  # fmt: skip
                self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
                self._shown.start()
            self._count += 1
            shown = self._shown
            task = shown.add_task(title, total=None, far="")

        def draw(far: Far) -> None:
            counted = f"{far} {what}" if str(far) else ""
            shown.update(task, completed=far.done, total=far.whole or None, far=counted)

        try:
            yield draw
        finally:
            with self._lock:
                shown.remove_task(task)
                self._count -= 1
                if not self._count:
                    shown.stop()
                    self._shown = None


_bars = _Bars()


def step(text: str) -> None:
    """One line of what happened."""
    # While bars are drawn their console moves them down for it, if both are the same terminal.
    console = (_bars.console if sys.stdout.isatty() else None) or out
    console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}", highlight=False)


@contextmanager
def working(title: str, what: str = "", look: Callable[[], Far] | None = None, whole: int = 0) -> Iterator[Far]:
    """Show how far it is until the block ends: what is yielded, or what `look` says; `what` is what it counts."""
    far, ended = Far(whole=whole), threading.Event()
    started = time.monotonic()

    def now() -> Far:
        return far if look is None else look()

    def log() -> None:
        while not ended.wait(LOGGED_EVERY_S):
            counted = f", {now()} {what}".rstrip() if str(now()) else ""
            took = f"{time.monotonic() - started:.0f} s so far"
            print(f"{time.monotonic() - began:6.1f} s    {title}: {took}{counted}", file=sys.stderr, flush=True)

    def draw(show: Callable[[Far], None]) -> None:
        while not ended.wait(DRAWN_EVERY_S):
            show(now())

    def shown(target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name="progress", daemon=True)
        thread.start()
        return thread

    if sys.stderr.isatty():
        with _bars.one(title, what) as show:
            thread = shown(lambda: draw(show))
            try:
                yield far
            finally:
                ended.set()
                thread.join()
        return
    thread = shown(log)
    try:
        yield far
    finally:
        ended.set()
        thread.join()
