"""Rounds of kill -9 on real processes during full-speed writes, each checked entry by entry.

`python -m tests.chaos.rounds --rounds N --seed S [--resume FILE]` runs them; the same seed chooses the same kills.
Kinds: a bookie is killed and the writer goes on; the writer is killed and another process recovers; all bookies,
on disks that withhold what was not synced, are killed at once (a power failure) and another process recovers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.processes import BookieProcess, WriterProcess, bookies, last_json, run
from tests.chaos.soaking import options_of, run_rounds

KINDS = ("bookie", "writer", "power")
SHAPES = ("3/3/2", "3/2/2", "3/3/3", "4/3/2")


@dataclass(frozen=True)
class Round:
    """One round, drawn from its seed. `before` and `after` are numbers of entries before and after the kill."""

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
        """Return the text of an entry, which contains the seed and its number. Its length varies."""
        body = b"%d.%d." % (self.seed, number)
        return body + b"x" * (number * 7919 % 900)


def play(spec: Round, root: Path) -> dict[str, int]:
    """Run one round in `root`. Raises AssertionError if entries were lost, changed or out of order."""

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
    """Kill, then restart what was killed. Return the highest entry that was acknowledged."""
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
    parser = options_of(__doc__, 100)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--disk", default="withhold", help="withhold, or withhold-nosync (must lose entries)")
    options = parser.parse_args()

    def one(seed: int, root: Path) -> dict[str, Any]:
        spec = Round.choose(seed, options.kind, options.disk)
        return {"kind": spec.kind, "shape": spec.shape, **play(spec, root)}

    def replay(seed: int) -> str:
        kind = Round.choose(seed, options.kind, options.disk).kind
        return f"python -m tests.chaos.rounds --rounds 1 --seed {seed} --kind {kind} --disk {options.disk}"

    def summed(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
        kinds = {kind: sum(outcome["kind"] == kind for outcome in outcomes) for kind in KINDS}
        return {"kinds": kinds, "acked": sum(outcome["acked"] for outcome in outcomes)}

    return run_rounds(options, one, replay, summed)


if __name__ == "__main__":
    raise SystemExit(main())
