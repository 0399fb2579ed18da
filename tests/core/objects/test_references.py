"""No ledger is dead that some object, part or deleted directory has bytes in, whatever the commands: counted anew."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from buckram.core.objects.index import ObjectIndex
from buckram.core.objects.ledger_use import DEAD, OPEN
from buckram.core.objects.rows import Extent, ObjectRow
from buckram.core.objects.tree import directories
from buckram.errors import CommandRefused

NAMES = ("a", "b", "d/x", "d/y", "d/e/z", "f/x")
STEPS = 200


class Program:
    """Random commands to one index. `sealed` and `gone` are the ledgers as the program has told the index."""

    def __init__(self, seed: int) -> None:
        self.rng, self.index = random.Random(seed), ObjectIndex()
        self.open: list[int] = []
        self.sealed: set[int] = set()
        self.last = 0

    def begin(self) -> int:
        self.last += 1
        self.open.append(self.last)
        self.index.apply(["begin", self.last, "writer"])
        return self.last

    def ledger(self) -> int:
        """Return a ledger that may be written to, or now and then one that is sealed, or dead, already."""
        if self.sealed and self.rng.random() < 0.15:
            return self.rng.choice(sorted(self.sealed))
        return self.rng.choice(self.open) if self.open and self.rng.random() < 0.7 else self.begin()

    def extents(self) -> list[list[int]]:
        """Return up to three extents, often of one and the same ledger."""
        ledger, count = self.ledger(), self.rng.choice((0, 1, 1, 2, 3))
        others = (ledger, ledger, self.ledger())
        return [[self.rng.choice(others), number, 0, self.rng.choice((0, 1, 10)), 0] for number in range(count)]

    def seals(self) -> list[list[int]]:
        if not self.open or self.rng.random() < 0.6:
            return []
        return [[self.rng.choice(self.open), 30]]

    def put(self, *, expires_us: int = 0) -> dict[str, Any]:
        extents = self.extents()
        size = sum(extent[3] for extent in extents)
        about = {"size": size, "digest": "sha256:00", "metadata": [], "expires_us": expires_us}
        return {**about, "extents": extents, "sealed": self.seals()}

    def row(self) -> list[Any]:
        found = self.put()
        return [1, found["size"], "sha256:00", 1, 0, [], found["extents"]]

    def command(self) -> list[Any]:
        rng, name, other = self.rng, self.rng.choice(NAMES), self.rng.choice(NAMES)
        uploads = sorted(self.index.uploads) or [0]
        row = self.index.look(name)
        kinds: list[list[Any]] = [
            ["put", name, self.put(), rng.choice((None, None, "absent"))],
            ["put", name, self.put(expires_us=rng.choice((1, 5, 1000))), None],
            ["copy", name, other, None],
            ["rename", name, other, None],
            ["rename", name.rpartition("/")[0] or name, f"g{rng.randrange(3)}", None],
            ["delete", name, None],
            ["remove", name.rpartition("/")[0] or name, True],
            ["purge"],
            ["expire"],
            ["upload", name],
            ["part", rng.choice(uploads), rng.randrange(2), 1, "sha256:00", self.extents(), self.seals()],
            ["complete", rng.choice(uploads), {**self.put(), "parts": rng.choice((1, 2))}, None],
            ["abort", rng.choice(uploads)],
            ["moved", name, row.version if row is not None else 0, self.extents()],
            ["mirror", 1, {"put": [[name, self.row()]], "gone": [other], "kept": ["k"], "unkept": []}, self.seals()],
            ["seal", rng.choice(self.open or [0]), rng.choice((0, 30))],
            ["gone", [ledger for ledger in self.index.space.dead if rng.random() < 0.3]],
            ["gone", [rng.randint(1, max(self.last, 1))]],  # from a leader that took an older state for today's
        ]
        return rng.choice(kinds)

    def step(self) -> list[Any]:
        self.index.now_us += self.rng.choice((0, 1, 3))
        command = self.command()
        try:
            self.index.apply(command)
        except CommandRefused:
            return command
        told = list(command[2]["sealed"]) if command[0] == "put" else []
        told += command[-1] if command[0] in ("part", "mirror") else []
        told += [command[1:]] if command[0] == "seal" else []
        self.sealed |= {ledger for ledger, _ in told}
        self.open = [ledger for ledger in self.open if ledger not in self.sealed]
        return command


def extents_in(index: ObjectIndex) -> list[Extent]:
    """Return the extents of all that is there, also in the trash and in uploads: each counts as often as it occurs."""
    found: list[Extent] = []
    for tree in (index.root, *index.trash):
        for _, directory in directories(tree):
            found += [
                extent for row in directory.nodes.values() if isinstance(row, ObjectRow) for extent in row.extents
            ]
    for upload in index.uploads.values():
        found += [extent for _, _, extents in upload.parts.values() for extent in extents]
    return found


def check(index: ObjectIndex, sealed: set[int], last: int, after: object) -> None:
    needed, live = Counter[int](), Counter[int]()
    for extent in extents_in(index):
        needed[extent.ledger] += 1
        live[extent.ledger] += extent.length
    rows = {ledger: (state, references, bytes_) for ledger, state, references, bytes_, *_ in index.space.dump()}
    assert needed.keys() <= rows.keys(), after
    for ledger in range(1, last + 1):
        if ledger not in rows:
            assert ledger in sealed, after  # it was dead, and is gone
            continue
        state, references, size = rows[ledger]
        assert (references, size) == (needed[ledger], live[ledger]), after
        assert (state == OPEN) is (ledger not in sealed), after
        assert (state == DEAD) is (ledger in sealed and not needed[ledger]), after
    assert set(index.space.dead) == {ledger for ledger, row in rows.items() if row[0] == DEAD}, after
    assert index.space.live_bytes == sum(live.values()), after


@pytest.mark.parametrize("seed", range(5))
def test_references_are_those_of_the_rows(seed: int) -> None:
    program = Program(seed)
    for number in range(STEPS):
        after = program.step()
        check(program.index, program.sealed, program.last, (number, after))
        if number % 50 == 49:
            again = ObjectIndex()
            again.restore(b"".join(program.index.snapshot()))
            again.now_us = program.index.now_us
            program.index = again
            check(again, program.sealed, program.last, (number, "a restart"))
    assert program.index.space.dead or program.sealed
