"""The snapshot of an objects' index as lines of JSON: a head, then each directory, followed by the objects in
it, a thousand in a line.

Taking it copies the directories' tables and no row, so that the index stands still for a moment only, also with a
million names. Not here: what the head has (`core/objects/index.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from buckram.core.objects.rows import Extent, ObjectRow
from buckram.core.objects.tree import Directory, SortedNames, directories, place_for
from buckram.errors import UnknownCommand

FORMAT = 2
_ROWS = 1000
_Copy = tuple[list[Any], SortedNames, dict[str, Directory | ObjectRow]]
"""A directory: its line, the order of its children, and its children."""


def lines_of(head: Sequence[Any], root: Directory, trash: Sequence[Directory]) -> Iterator[bytes]:
    """Yield the lines of a snapshot as of the call: the tree of the root, then the trees in the trash."""
    copies: list[_Copy] = [
        (
            [number, path, directory.kept, directory.time_us, len(directory.nodes) - len(directory.below)],
            directory.order.copy(),
            dict(directory.nodes),
        )
        for number, tree in enumerate((root, *trash))
        for path, directory in directories(tree)
    ]
    return _lines([FORMAT, len(trash), *head], copies)


def _lines(head: list[Any], copies: list[_Copy]) -> Iterator[bytes]:
    yield _line(head)
    for line, order, nodes in copies:
        yield _line(line)
        names = order.since("")
        while part := list(islice(names, _ROWS)):
            rows = ((name, nodes.get(name)) for name in part)  # In `order` a directory's name ends with a slash.
            found = [[name, *row] for name, row in rows if isinstance(row, ObjectRow)]
            if found:
                yield _line(found)


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def read_lines(data: bytes) -> tuple[list[Any], Directory, list[Directory]]:
    """Return the head, the root and the trash. Raises UnknownCommand for another format, ValueError for malformed
    lines.
    """
    lines = iter(data.splitlines())
    form, trees, *head = json.loads(next(lines))
    if form != FORMAT:
        raise UnknownCommand(f"a snapshot of format {form}; this version of buckram knows {FORMAT}: update it")
    # Made as their lines come: the number in the head may be anything.
    roots: list[Directory] = []
    times: list[tuple[Directory, int]] = []
    for line in lines:
        number, path, kept, time_us, count = json.loads(line)
        if number == len(roots):
            roots.append(Directory())
        directory = place_for(roots[number], f"{path}/.", time_us)[0] if path else roots[number]
        nodes = directory.nodes
        while len(nodes) < count:
            # Written by `_lines` and verified by the snapshot's digest, so that nothing is checked once more.
            for name, version, size, digest, time_us, expires_us, metadata, extents in json.loads(next(lines)):
                nodes[name] = ObjectRow(
                    version,
                    size,
                    digest,
                    time_us,
                    expires_us,
                    tuple(map(tuple, metadata)) if metadata else (),
                    tuple(map(Extent._make, extents)),
                )
        directory.order.load(sorted(nodes))
        directory.kept = kept
        times.append((directory, time_us))
    # Only now: each directory gave the one above it another time.
    for directory, time_us in times:
        directory.time_us = time_us
    if len(roots) != trees + 1:
        raise ValueError(f"there are {len(roots)} trees, and the head says {trees + 1}")
    return head, roots[0], roots[1:]
