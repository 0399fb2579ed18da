"""Rounds of faults around a query that writes a stream: drivers are killed repeatedly, and tasks and commits fail.

`python -m tests.spark.faults.rounds --rounds N --seed S [--resume FILE]`; the same seed chooses the same faults. Odd
rounds have their metadata on ZooKeeper. Whenever the driver is down, the stream has complete batches, each once; at the
end it has all of them, and after a pass of the janitor no unlisted ledger is left.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.spark.faults.driver import WAIT_S, Driver
from tests.spark.faults.kit import Lines, leftovers, values

from buckram.launch.zookeeper_server import start_zookeeper
from buckram.testing import ThreadedCluster

OF_TASKS = ("raise-early", "raise-late", "kill-early", "kill-late")
OF_COMMITS = ("commit-before", "commit-after", "lost-reply", "die-before", "die-after")
BATCHES, ROWS, PARTITIONS, STREAM = 6, 90, 3, "default/s"
MOST_STARTS = 40


@dataclass(frozen=True)
class Round:
    """The faults by batch, and the seconds after which drivers are killed from outside."""

    seed: int
    faults: tuple[str, ...]
    kills: tuple[float, ...]

    @classmethod
    def choose(cls, seed: int) -> Round:
        rng = random.Random(seed)
        found: dict[str, None] = {}
        for batch in range(BATCHES):
            for _ in range(rng.choice((0, 1, 1, 2))):
                found[f"{rng.choice(OF_TASKS)}:{batch}:{rng.randrange(PARTITIONS)}"] = None
            for _ in range(rng.choice((0, 1, 1, 2))):
                found[f"{rng.choice(OF_COMMITS)}:{batch}"] = None
        return cls(seed, tuple(found), tuple(round(rng.uniform(3.0, 12.0), 1) for _ in range(3)))

    @property
    def zookeeper(self) -> bool:
        return self.seed % 2 == 1


def play(spec: Round, root: Path) -> dict[str, int]:
    """Check the stream; an AssertionError says what is lost, doubled or left behind."""
    with ExitStack() as stack:
        metadata = "sqlite"
        if spec.zookeeper:
            server = start_zookeeper(root / "zookeeper", sync=False)
            stack.callback(server.stop)
            metadata = f"zk://{server.address}/ledgers"
        cluster = stack.enter_context(ThreadedCluster(bookies=3, metadata=metadata))
        lines = Lines(root / "query", files=BATCHES, rows=ROWS)
        starts = _until_done(spec, cluster.uri, lines)
        assert Counter(values(cluster.uri, STREAM)) == lines.expected, "rows are lost or doubled"
        before, after = leftovers(cluster.uri, STREAM)
        assert after == 0, f"{after} ledgers are left behind"
        struck = len(list((lines.directory / "marks").glob("*-*")))
        return {"starts": starts, "accidents": struck, "collected": before}


def _until_done(spec: Round, uri: str, lines: Lines) -> int:
    kills = list(spec.kills)
    for starts in range(1, MOST_STARTS):
        killed_after = kills.pop() if kills else None
        with Driver(lines, uri, STREAM, ",".join(spec.faults)) as driver:
            try:
                if driver.wait(killed_after or WAIT_S) == 0:
                    return starts
            except subprocess.TimeoutExpired:
                assert killed_after is not None, f"the driver hangs: {driver.last_words()}"
        _check_whole(uri, lines)
    raise AssertionError(f"not done after {MOST_STARTS} starts: {driver.last_words()}")


def _check_whole(uri: str, lines: Lines) -> None:
    there = Counter(values(uri, STREAM))
    for batch in range(BATCHES):
        rows = [there[b"%d.%d" % (batch, row)] for row in range(lines.rows)]
        assert rows in ([0] * lines.rows, [1] * lines.rows), f"batch {batch} is there in part or twice"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="file that remembers the rounds already done")
    options = parser.parse_args()
    done = json.loads(options.resume.read_text()) if options.resume and options.resume.exists() else {}
    failed, began = 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.rounds):
        if str(seed) in done:
            continue
        spec, root = Round.choose(seed), Path(tempfile.mkdtemp(prefix="buckram-spark-round-"))
        try:
            done[str(seed)] = play(spec, root)
        except AssertionError as error:
            failed += 1
            print(f"round {spec} FAILED: {error}\nfiles: {root}", file=sys.stderr)
            print(f"replay: python -m tests.spark.faults.rounds --rounds 1 --seed {seed}", file=sys.stderr, flush=True)
            continue
        print(f"round {seed}: {done[str(seed)]}", file=sys.stderr, flush=True)
        shutil.rmtree(root)
        if options.resume:
            options.resume.write_text(json.dumps(done))
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"rounds": len(done), "failed": failed, "seconds": seconds}))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
