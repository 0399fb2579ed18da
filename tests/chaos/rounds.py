"""Rounds of kill -9 on real processes during full-speed writes, each checked entry by entry.

`python -m tests.chaos.rounds --rounds N --seed S [--resume FILE]` runs them; the same seed chooses the same kills.
Kinds: a bookie is killed and the writer goes on; the writer is killed and another process recovers; all bookies,
on disks that withhold what was not synced, are killed at once (a power failure) and another process recovers.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.processes import BookieProcess, ProcessFailed, WriterProcess, bookies, last_json, run

KINDS = ("bookie", "writer", "power")
SHAPES = ("3/3/2", "3/2/2", "3/3/3", "4/3/2")


@dataclass(frozen=True)
class Round:
    """One round, chosen by its seed."""

    seed: int
    kind: str
    shape: str
    before: int
    after: int
    victim: int
    disk: str

    @classmethod
    def choose(cls, seed: int, kind: str | None = None, disk: str = "withhold") -> Round:
        rng = random.Random(seed)
        picked = kind or KINDS[seed % len(KINDS)]
        return cls(
            seed=seed,
            kind=picked,
            shape=rng.choice(SHAPES),
            before=rng.randrange(500, 12_000),
            after=rng.randrange(2_000, 8_000),
            victim=rng.randrange(5),
            disk=disk if picked == "power" else "",
        )

    def line(self, number: int) -> bytes:
        """Self-describing and unique; the tail's length varies so that entries differ in size."""
        body = b"%d.%d." % (self.seed, number)
        return body + b"x" * (number * 7919 % 900)


def play(spec: Round, root: Path) -> dict[str, int]:
    """Run one round below `root`; AssertionError says what was lost, changed or out of order."""

    def disk(n: int) -> str:
        return f"{spec.disk}:{spec.seed * 10 + n}" if spec.disk else ""

    with bookies(root, 5, disk=disk) as servers:
        uri = servers[0].uri
        writer = WriterProcess(uri, ["--ensemble", spec.shape], spec.line)
        writer.start(root / "writer.log")
        try:
            writer.wait_acked(spec.before)
            acked = _kill(spec, servers, writer)
        finally:
            writer.kill()
        stored = run(["ledger", "read", str(writer.ledger)], uri).splitlines()
        _compare(spec, stored, acked)
        return {"ledger": writer.ledger, "acked": acked + 1, "stored": len(stored)}


def _kill(spec: Round, servers: list[BookieProcess], writer: WriterProcess) -> int:
    """Do the damage and bring the cluster back; gives the highest entry that was acknowledged."""
    if spec.kind == "bookie":
        victim = servers[spec.victim]
        victim.kill()
        writer.wait_acked(writer.acked + spec.after)
        victim.start()
        result = writer.finish()
        assert result["last_entry"] >= writer.acked, f"closed at {result['last_entry']}, acknowledged {writer.acked}"
        return int(result["last_entry"])
    if spec.kind == "power":
        for server in servers:
            server.signal(9)
        for server in servers:
            server.reap()
        writer.kill()
        for server in servers:
            server.start()
    else:
        writer.kill()
    acked = writer.acked
    shown = last_json(run(["ledger", "recover", str(writer.ledger), "--yes", "--json"], writer.uri))
    assert shown["last_entry"] >= acked, f"recovered up to {shown['last_entry']}, acknowledged {acked}"
    return acked


def _compare(spec: Round, stored: list[str], acked: int) -> None:
    assert len(stored) > acked, f"entries up to {acked} were acknowledged, only {len(stored)} are there"
    for number, text in enumerate(stored):
        expected = spec.line(number).decode()
        assert text == expected, f"entry {number} is {text[:60]!r}, written was {expected[:60]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--disk", default="withhold", help="withhold, or withhold-nosync (must lose entries)")
    parser.add_argument("--resume", type=Path, help="file that remembers the rounds already done")
    options = parser.parse_args()
    done = json.loads(options.resume.read_text()) if options.resume and options.resume.exists() else {}
    failed, began = 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.rounds):
        if str(seed) in done:
            continue
        spec = Round.choose(seed, options.kind, options.disk)
        root = Path(tempfile.mkdtemp(prefix="buckram-round-"))
        try:
            done[str(seed)] = {"kind": spec.kind, **play(spec, root)}
            print(f"round {seed} {spec.kind} {spec.shape}: {done[str(seed)]}", file=sys.stderr, flush=True)
        except (AssertionError, ProcessFailed) as error:
            failed += 1
            again = f"python -m tests.chaos.rounds --rounds 1 --seed {seed} --kind {spec.kind} --disk {options.disk}"
            print(f"round {seed} {spec.kind} {spec.shape} FAILED: {error}", file=sys.stderr)
            print(f"replay: {again}\nfiles: {root}", file=sys.stderr, flush=True)
            continue
        shutil.rmtree(root)
        if options.resume:
            options.resume.write_text(json.dumps(done))
    kinds = {kind: sum(r["kind"] == kind for r in done.values()) for kind in KINDS}
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"rounds": len(done), "failed": failed, "kinds": kinds, "seconds": seconds,
                      "acked": sum(r["acked"] for r in done.values())}))  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
