"""The checks that the Java programs hold, read from their source: so collecting tests starts no Java."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.interop.apache import SOURCES

DIGESTS = ("CRC32", "CRC32C", "MAC", "DUMMY")
_CHECK = re.compile(r"@Check(?:\(([^)]*)\))?\s+void (\w+)\(Setting")


@dataclass(frozen=True)
class Row:
    """One named check: a method of a room, with a wire protocol and a digest."""

    room: str
    name: str
    wire: str
    digest: str

    def __str__(self) -> str:
        return f"{self.room}.{self.name}-{self.wire}-{self.digest}"


def rows(*rooms: str) -> list[Row]:
    """Every check of these rooms; those that need only one digest get CRC32C on v3 and CRC32 on v2."""
    found = []
    for room in rooms:
        for options, name in _CHECK.findall((SOURCES / f"{room}.java").read_text()):
            wires = re.search(r'wires = "([^"]*)"', options)
            for wire in (wires.group(1) if wires else "v2 v3").split():
                one = ("CRC32C",) if wire == "v3" else ("CRC32",)
                found += [Row(room, name, wire, digest) for digest in (DIGESTS if "perDigest" in options else one)]
    return found
