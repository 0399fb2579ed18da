"""Bookies as processes, autorecovery beside them, and the comparison of `status` with `ledger check --all`."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.conftest import buckram, environment
from tests.support.polling import wait_until

from buckram.cli.app import run
from buckram.cli.shared.exits import Exit
from buckram.launch.processes import BookieProcess, stop_all

INCOMPLETE = {"unverified", "not-asked"}
"""The warnings with which `status` says that nobody knows whether all copies are there."""


LIMIT_S = 180.0


@dataclass(frozen=True)
class Said:
    """What both commands said: exit codes, the names of what `status` found, the states of ledgers."""

    status: int
    check: int
    found: frozenset[str]
    states: dict[str, int]

    @property
    def whole(self) -> bool:
        """Whether `status` lets one believe that every copy is there."""
        return self.status == 0 and not INCOMPLETE & self.found


@dataclass
class Place:
    """A cluster on SQLite in a directory."""

    root: Path
    bookies: dict[str, BookieProcess] = field(default_factory=dict)
    healers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    seen: list[Said] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"sqlite://{self.root / 'metadata.db'}"

    def start(self, bookie: str) -> None:
        process = self.bookies.get(bookie)
        if process is None:
            small = {"BUCKRAM_STORE_SEGMENT_BYTES": str(4 << 20)}
            process = BookieProcess(self.uri, self.root / bookie, bookie_id=bookie, environment=small)
            self.bookies[bookie] = process
        process.start()
        process.wait_ready()

    def heal(self, **settings: object) -> None:
        """Run autorecovery with these settings of [healing]."""
        given = {f"BUCKRAM_HEALING_{name.upper()}": str(value) for name, value in settings.items()}
        command = [sys.executable, "-m", "buckram", "autorecovery", "run", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**environment(self.uri), **given})
        self.healers.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()

    def ask(self, *words: object) -> tuple[int, list[dict[str, Any]]]:
        """The exit code of a command, and its lines of JSON."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = run([*map(str, words), "--json", "--metadata", self.uri])
        return code, [json.loads(line) for line in out.getvalue().splitlines()]

    def look(self, *, read: bool = False) -> Said:
        """Ask `status` before `ledger check --all`: what lacks then lacked before, for nothing here loses data in
        between. Never may the first say that all is whole where the second finds a lack, or cannot tell."""
        code, shown = self.ask("status")
        checked, lines = self.ask("ledger", "check", "--all", *(["--read"] if read else []))
        found = frozenset(one["what"] for one in shown[-1]["problems"])
        said = Said(code, checked, found, lines[-1]["states"])
        self.seen.append(said)
        assert code in (Exit.OK, Exit.FAILED)
        assert (code == 0) is shown[-1]["healthy"]
        assert checked in (Exit.OK, Exit.FAILED, Exit.TRY_AGAIN)
        assert (checked == 0) is lines[-1]["healthy"]
        assert checked == 0 or not said.whole, f"status says that all is whole: {shown[-1]}, {lines}"
        return said

    def until(self, condition: Callable[[Said], bool], what: str) -> Said:
        """Look again and again; what both say has to agree at each look."""
        found = list[Said]()

        def holds() -> bool:
            found.append(self.look())
            return condition(found[-1])

        wait_until(holds, what, LIMIT_S)
        return found[-1]

    def until_whole(self) -> None:
        self.until(lambda said: said.whole and said.check == 0, "status does not say that all is whole")
        assert self.look(read=True).check == 0

    def write(self, entries: int = 200, ensemble: str = "3/3/2", *, size: int = 10) -> int:
        """A closed ledger of so many entries of so many bytes."""
        lines = (b"x" * size + b"\n") * entries
        done = buckram("ledger", "write", "--ensemble", ensemble, "--close", "--json", uri=self.uri, stdin=lines)
        assert done.code == 0, done.err
        return int(done.json["ledger"])

    def close(self) -> None:
        for process in self.bookies.values():
            process.signal(signal.SIGCONT)
        for healer in self.healers:
            healer.terminate()
        for healer in self.healers:
            healer.wait(30)
            assert healer.stdout is not None
            healer.stdout.close()
        stop_all(list(self.bookies.values()))


@contextmanager
def place(root: Path, bookies: int = 3) -> Iterator[Place]:
    made = Place(root)
    assert buckram("cluster", "init", uri=made.uri).code == 0
    try:
        for number in range(bookies):
            made.start(f"b{number}")
        yield made
    finally:
        made.close()
