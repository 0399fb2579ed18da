"""Rounds of kill -9 around one stream: its writer, its reader, the janitor and bookies, while it rolls every second.

`python -m tests.chaos.stream_rounds --rounds N --seed S [--resume FILE]`; the same seed chooses the same kills. Record
n has offset n, because the writer is an idempotent producer that goes on after its last acknowledgement. The reader
commits a cursor, and records before it are truncated. In the end every record was read, in order, with the bytes that
were written, a restarted reader got no record that it had committed, and no ledger is left that no stream lists.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.processes import BUCKRAM, BookieProcess, ProcessFailed, bookies, environment, last_json, run
from tests.chaos.soaking import options_of, run_rounds

VICTIMS = ("writer", "reader", "janitor", "bookie", "two bookies")
STREAM = "s"
POLICY = ("ensemble=3/3/2", "roll_s=1s", "retention_consumed=yes")
AHEAD = 4_000
"""How many records may wait for their acknowledgement, so that some are always under way at a kill."""
FEED, FEED_PAUSE_S = 100, 0.01
ROLLED_S = 1.3
AWAY_S = 0.7
"""How long two of four bookies are down: the open ledger breaks, and the stream goes on when they are back."""
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Round:
    """One round, drawn from its seed: which processes are killed, after how many more records each."""

    seed: int
    kills: tuple[tuple[str, int], ...]

    @classmethod
    def choose(cls, seed: int, kills: int = 4) -> Round:
        rng = random.Random(seed)
        order = [VICTIMS[seed % len(VICTIMS)], *(rng.choice(VICTIMS) for _ in range(kills - 1))]
        return cls(seed, tuple((victim, rng.randrange(500, 5_000)) for victim in order))

    def line(self, number: int) -> bytes:
        """Return the text of a record, which contains the seed and its number. Its length varies."""
        return b"%d.%d." % (self.seed, number) + b"x" * (number * 7919 % 300)


class Child:
    """A `buckram` command whose lines of JSON go to `on_line`, except for a last line that a kill has cut off."""

    def __init__(self, uri: str, log: Path, on_line: Callable[[Any], None], *words: object) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*BUCKRAM, *map(str, words)], env=environment(BUCKRAM_METADATA=uri), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._on_line = on_line
        self.wrong: Exception | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for raw in pipe:
                if raw.endswith(b"\n") and self.wrong is None:
                    try:
                        self._on_line(json.loads(raw))
                    except (AssertionError, ValueError, KeyError) as error:
                        self.wrong = error

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal unless the process has ended. Return its exit code, after all its output was handled."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.join()

    def join(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        code = self.process.wait(DEADLINE_S)
        self._listener.join(DEADLINE_S)
        if self.wrong is not None:
            raise AssertionError(str(self.wrong)) from self.wrong
        return code


class RunningRound:
    """One round with its processes. `acked` and `read` are the highest record acknowledged and read."""

    def __init__(self, spec: Round, root: Path, servers: list[BookieProcess]) -> None:
        self.spec, self.root, self.servers, self.uri = spec, root, servers, servers[0].uri
        self.acked = self.read = -1
        self.deleted = 0
        self.cleaned = False
        """The present janitor has reported a run."""
        self.result: dict[str, Any] = {}
        self.children: dict[str, Child] = {}
        self._session = -1
        self._changed = threading.Condition()
        self._feeder: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self, who: str) -> None:
        log = self.root / f"{who}.log"
        if who == "writer":
            first = self.acked + 1
            self.children[who] = Child(
                self.uri, log, self._acknowledged, "stream", "write", STREAM, "--takeover", "--acks", "--producer", "p",
                "--sequence", first,
            )  # fmt: skip
            self._stop.clear()
            self._feeder = threading.Thread(target=self._feed, args=(self.children[who].process, first), daemon=True)
            self._feeder.start()
        elif who == "reader":
            self._session = -1
            self.children[who] = Child(
                self.uri, log, self._seen, "stream", "read", STREAM, "--cursor", "r", "--commit", "-f", "--json"
            )
        else:
            self.cleaned = False
            self.children[who] = Child(
                self.uri, log, self._cleaned, "stream", "janitor", "--every", "0.3s", "--grace", "0.5s", "--json"
            )

    def kill(self, who: str, number: int = signal.SIGKILL) -> None:
        if who == "writer":
            self._stop.set()
        self.children[who].end(number)
        if who == "writer" and self._feeder is not None:
            self._feeder.join(DEADLINE_S)

    def _feed(self, process: subprocess.Popen[bytes], number: int) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            while not self._stop.wait(FEED_PAUSE_S):
                if number - self.acked < AHEAD:
                    pipe.write(b"".join(self.spec.line(n) + b"\n" for n in range(number, number + FEED)))
                    pipe.flush()
                    number += FEED

    def _acknowledged(self, value: Any) -> None:
        with self._changed:
            if isinstance(value, int):
                assert value > self.acked, f"acknowledged {value} after {self.acked}"
                self.acked = value
            else:
                self.result = value
            self._changed.notify_all()

    def _seen(self, row: dict[str, Any]) -> None:
        offset = row["offset"]
        with self._changed:
            if self._session < 0:
                assert offset <= self.read + 1, f"a restarted reader began at {offset}, it had read up to {self.read}"
            else:
                assert offset == self._session + 1, f"offset {offset} came after {self._session}"
            self._session, self.read = offset, max(self.read, offset)
            self._changed.notify_all()
        value = base64.b64decode(row["value_base64"])
        assert value == self.spec.line(offset), f"offset {offset} is {value[:60]!r}"

    def _cleaned(self, report: dict[str, Any]) -> None:
        with self._changed:
            self.cleaned = True
            self.deleted += report["deleted_segments"]
            self._changed.notify_all()

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        limit = time.monotonic() + DEADLINE_S
        with self._changed:
            while not reached():
                ended = [who for who, child in self.children.items() if child.process.poll() is not None]
                if ended:
                    raise ProcessFailed(f"the {ended[0]} ended: {(self.root / f'{ended[0]}.log').read_text()[-2000:]}")
                wrong = [child.wrong for child in self.children.values() if child.wrong is not None]
                assert not wrong, str(wrong[0])
                assert time.monotonic() < limit, f"no {what}: acknowledged {self.acked}, read {self.read}"
                self._changed.wait(0.5)

    def progress(self, count: int) -> None:
        """Wait until `count` more records are acknowledged and read, and at least one segment has ended meanwhile."""
        acked, read, since = self.acked, self.read, time.monotonic()
        self.wait("acknowledgement", lambda: self.acked >= acked + count)
        self.wait("record", lambda: self.read >= read + count)
        self.wait("roll", lambda: time.monotonic() - since >= ROLLED_S)

    def damage(self, who: str) -> None:
        if who == "bookie":
            victim = self.servers[self.spec.seed % len(self.servers)]
            victim.kill()
            self.progress(500)
            victim.start()
        elif who == "two bookies":
            victims = [self.servers[(self.spec.seed + n) % len(self.servers)] for n in (1, 2)]
            since = time.monotonic()
            for victim in victims:
                victim.kill()
            self.wait("while", lambda: time.monotonic() - since >= AWAY_S)
            for victim in victims:
                victim.start()
        else:
            self.kill(who)
            self.start(who)

    def finish(self) -> dict[str, int]:
        self._stop.set()
        assert self._feeder is not None
        self._feeder.join(DEADLINE_S)
        writer = self.children.pop("writer")
        assert writer.join() == 0, f"the writer failed: {(self.root / 'writer.log').read_text()[-2000:]}"
        self.wait("end", lambda: self.read >= self.acked)
        assert self.read == self.acked, f"read {self.read}, the last acknowledged was {self.acked}"
        self.wait(
            "report of the janitor", lambda: self.cleaned
        )  # before that SIGTERM would reach a Python that is starting
        for who in ("reader", "janitor"):
            code = self.children.pop(who).end(signal.SIGTERM)
            assert code == 0, f"the {who} ended with {code}: {(self.root / f'{who}.log').read_text()[-2000:]}"
        return self._check()

    def _check(self) -> dict[str, int]:
        report = last_json(run(["stream", "janitor", "--grace", "0s", "--json"], self.uri))
        assert report["problems"] == [], report["problems"]
        self._cleaned(report)
        shown = last_json(run(["stream", "show", STREAM, "--segments", "--json"], self.uri))
        end = self.acked + 1
        assert shown["end"] == end, f"the stream ends at {shown['end']}, {end} records were acknowledged"
        segments = shown.get("segment_list", [])
        for before, after in itertools.pairwise(segments):
            assert before["first_offset"] + before["records"] == after["first_offset"], f"{before}, then {after}"
        ledgers = last_json(run(["ledger", "list", "--ids", "--json"], self.uri))["ledgers"]
        assert ledgers == sorted(segment["ledger"] for segment in segments), f"ledgers {ledgers}, listed {segments}"
        found = last_json(run(["stream", "orphans", "--json"], self.uri))
        assert found["orphans"] == [], found
        # The list is counted, because a janitor that was killed has not reported what it deleted.
        rolled = segments[-1]["number"]
        assert rolled >= len(self.spec.kills), f"only {rolled} segments ended meanwhile: {segments}"
        assert self.deleted, f"of {rolled} segments that ended none was deleted: {segments}"
        return {"records": end, "truncated": shown["earliest"], "segments": rolled + 1, "deleted": self.deleted}


def play(spec: Round, root: Path) -> dict[str, int]:
    """Run one round in `root`. Raises AssertionError if records were lost, changed or doubled, or ledgers left."""
    with bookies(root, 4) as servers:
        settings = [word for setting in POLICY for word in ("--set", setting)]
        run(["stream", "create", STREAM, *settings], servers[0].uri)
        work = RunningRound(spec, root, servers)
        try:
            for who in ("writer", "reader", "janitor"):
                work.start(who)
            for who, count in spec.kills:
                work.progress(count)
                work.damage(who)
            work.progress(500)
            return work.finish()
        finally:
            for child in work.children.values():
                child.process.kill()
                child.process.wait(DEADLINE_S)


def main() -> int:
    def one(seed: int, root: Path) -> dict[str, Any]:
        spec = Round.choose(seed)
        return {"killed": [who for who, _ in spec.kills], **play(spec, root)}

    def summed(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
        return {"records": sum(outcome["records"] for outcome in outcomes)}

    command = "python -m tests.chaos.stream_rounds --rounds 1 --seed"
    return run_rounds(options_of(__doc__, 100).parse_args(), one, lambda seed: f"{command} {seed}", summed)


if __name__ == "__main__":
    raise SystemExit(main())
