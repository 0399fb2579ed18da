"""The file of a run of many lives that goes on where it ended: a row for each few lives that are done.

A row says what code its lives ran on, since those of other code prove nothing: they are left in the file and not
counted, unless that is wanted. Several subjects may have one file. A run that is killed loses the lives that were under
way and no more: a row is written at once and synced, and one that is cut short is not read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ("src/buckram", "simulator")
"""Folders whose Python makes lives what they are."""


class InUse(Exception):
    """Another run has the file."""


@dataclass(frozen=True, slots=True)
class Code:
    """What lives run on: a digest of its sources, and the commit, which is there to be read."""

    digest: str
    commit: str = ""


def code_of(root: Path = ROOT) -> Code:
    """Return the code in this checkout. A commit that changes only pages or tests does not change its digest."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            data = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        found = ""
    return Code(digest.hexdigest()[:16], found)


class Resumed(AbstractContextManager["Resumed"]):
    """The lives of one subject in such a file, which nobody else can use until it is left. Raises InUse."""

    def __init__(self, path: Path, subject: str, code: Code, *, any_code: bool = False) -> None:
        """`any_code`: lives that ran on other code count as well."""
        self._subject, self._code, self._any_code = subject, code, any_code
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise InUse(f"{path} is in use by another run") from None
        self._known, text = list[Mapping[str, Any]](), path.read_bytes()
        self.others = 0
        """Lives of the subject that ran on other code and are not counted."""
        for line in text.splitlines():
            self._read(line)
        if text and not text.endswith(b"\n"):
            os.write(self._file, b"\n")

    def _read(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            return
        if row["subject"] != self._subject:
            return
        if self._any_code or row["code"] == self._code.digest:
            self._known.append(row)
        else:
            self.others += row["lives"]

    def rows(self, seeds: Collection[int]) -> Iterator[Mapping[str, Any]]:
        """Return the rows whose lives have these seeds, each seed once: of those of other code the newest."""
        seen: set[str] = set()
        for row in reversed(self._known):
            if seen.isdisjoint(row["hashes"]) and all(int(seed) in seeds for seed in row["hashes"]):
                seen |= set(row["hashes"])
                yield row

    def append(self, row: Mapping[str, object]) -> None:
        named = {"subject": self._subject, "code": self._code.digest, "commit": self._code.commit, **row}
        os.write(self._file, json.dumps(named).encode() + b"\n")
        os.fsync(self._file)

    def __exit__(self, *exc: object) -> None:
        os.close(self._file)


__all__ = ["Code", "InUse", "Resumed", "code_of"]
