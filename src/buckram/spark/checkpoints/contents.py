"""Contents of the checkpoints of Spark's queries, read from the objects of a namespace.

A checkpoint is a directory with a file `metadata` and directories `offsets` and `commits`: offsets/7 says what batch 7
reads, commits/7 that it was done. Not here: whether one is whole
(`spark/checkpoints/integrity_check.py`), copies (`spark/checkpoints/fork.py`), writing them, which Spark does
(`serve/webhdfs/`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from buckram.errors import NoSuchObject
from buckram.state.objects.objects import DirectoryInfo, ObjectInfo, Objects

_PAGE = 1000
_LOG_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a file of offsets or metadata that are read."""
METADATA, OFFSETS, COMMITS, STATE, SOURCES = "metadata", "offsets", "commits", "state", "sources"
"""Names of the file and the directories in a checkpoint."""
_MARKS = frozenset({METADATA, OFFSETS})


@dataclass(slots=True)
class Checkpoint:
    """One query's checkpoint. Times in microseconds UTC."""

    path: str
    """Path of the checkpoint, without the namespace."""
    query: str = ""
    """The query's id."""
    batch: int | None = None
    """The last batch that was done."""
    planned: int | None = None
    """The last batch that was begun; greater than `batch` while one is running, or after a driver died."""
    changed: int = 0
    """Time when a batch was last begun or done."""
    offsets: list[Any] = field(default_factory=list)
    """End of the last batch that was begun, for each source of the query."""
    settings: dict[str, str] = field(default_factory=dict)
    """Spark settings with which the query was started and which it has to keep."""
    bytes: int = 0
    """Bytes of all files."""
    files: int = 0
    state_bytes: int = 0
    """Bytes of the files of state stores, with those of earlier batches that Spark keeps."""
    state_files: int = 0

    def as_json(self, namespace: str, now_us: int) -> dict[str, Any]:
        """Return the checkpoint as a JSON object, for output to programs."""
        return {
            "checkpoint": f"{namespace}/{self.path}",
            "query": self.query,
            "batch": self.batch,
            "planned": self.planned,
            "changed": self.changed,
            "age_s": self.age_s(now_us),
            "offsets": self.offsets,
            "settings": self.settings,
            "bytes": self.bytes,
            "files": self.files,
            "state_bytes": self.state_bytes,
            "state_files": self.state_files,
        }

    def age_s(self, now_us: int) -> float:
        """Return the seconds since a batch was last begun or done."""
        return round(max(now_us - self.changed, 0) / 1e6, 1)


async def find(objects: Objects, path: str = "") -> AsyncIterator[str]:
    """Yield the paths of checkpoints at a path and below, in no order. Checkpoints are not searched inside."""
    waiting = [path]
    while waiting:
        place = waiting.pop()
        below: list[str] = []
        marks: set[str] = set()
        async for one in _children(objects, place):
            name = one.name.rpartition("/")[2]
            if isinstance(one, DirectoryInfo):
                below.append(one.name)
                marks |= {name} & {OFFSETS}
            else:
                marks |= {name} & {METADATA}
        if place and marks >= _MARKS:
            yield place
        else:
            waiting += below


async def describe(objects: Objects, path: str) -> Checkpoint:
    """Return the batches, offsets, settings and sizes of a checkpoint. Raises NoSuchObject if there is none."""
    found = Checkpoint(path, await query_of(objects, path))
    found.planned, begun_us = await _last_batch(objects, f"{path}/{OFFSETS}")
    found.batch, done_us = await _last_batch(objects, f"{path}/{COMMITS}")
    found.changed = max(begun_us, done_us)
    if not found.changed:
        found.changed = (await objects.info(f"{path}/{METADATA}")).time
    if found.planned is not None:
        text = await objects.get(f"{path}/{OFFSETS}/{found.planned}", length=_LOG_BYTES)
        found.offsets, found.settings = parse_offsets(text)
    await _measure(objects, found)
    return found


def parse_offsets(data: bytes) -> tuple[list[Any], dict[str, str]]:
    """Return the offsets of each source, None for one without, and the settings, from a file of offsets.

    An offset that is no JSON is returned as text, since each source has a form of its own.
    """
    version, *lines = data.decode(errors="replace").splitlines()
    if not version.startswith("v") or not lines:
        return [], {}
    about = as_json_line(lines[0])
    settings = about.get("conf", {}) if isinstance(about, dict) else {}
    return [None if line == "-" else as_json_line(line) for line in lines[1:]], dict(settings)


def as_json_line(line: str) -> Any:
    """Return what a line holds, or the line itself if it is no JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return line


async def query_of(objects: Objects, path: str) -> str:
    """Return the id of a checkpoint's query. Raises NoSuchObject if there is no checkpoint."""
    try:
        about = as_json_line((await objects.get(f"{path}/{METADATA}", length=_LOG_BYTES)).decode(errors="replace"))
    except NoSuchObject as error:
        raise NoSuchObject(
            f"{objects.namespace}/{path}",
            "is no checkpoint: it has no file `metadata`; `buckram checkpoint list` shows those that there are",
        ) from error
    return str(about.get("id", "")) if isinstance(about, dict) else ""


async def _last_batch(objects: Objects, path: str) -> tuple[int | None, int]:
    """Return the number of the last batch with a file there, None without one, and when it was written."""
    last, time_us = None, 0
    async for one in _children(objects, path):
        name = one.name.rpartition("/")[2]
        if isinstance(one, ObjectInfo) and name.isascii() and name.isdigit() and (last is None or int(name) > last):
            last, time_us = int(name), one.time
    return last, time_us


async def _measure(objects: Objects, found: Checkpoint) -> None:
    async for name, one in files_of(objects, found.path):
        in_state = name.startswith(f"{STATE}/")
        found.files += 1
        found.bytes += one.size
        found.state_files += in_state
        found.state_bytes += one.size if in_state else 0


async def files_of(objects: Objects, path: str) -> AsyncIterator[tuple[str, ObjectInfo]]:
    """Yield every file of a checkpoint, by its name without the checkpoint's, in the order of names."""
    prefix = f"{path}/"
    page = await objects.list(prefix=prefix, limit=_PAGE)
    while page:
        for one in page:
            yield one.name.removeprefix(prefix), one
        page = await objects.list(prefix=prefix, after=page[-1].name, limit=_PAGE)


async def _children(objects: Objects, path: str) -> AsyncIterator[ObjectInfo | DirectoryInfo]:
    """Yield the objects and directories directly in a directory; none if it does not exist."""
    last: ObjectInfo | DirectoryInfo | None = None
    while True:
        try:
            page = await objects.entries(path, after=last, limit=_PAGE)
        except NoSuchObject:
            return
        for one in page:
            yield one
        if len(page) < _PAGE:
            return
        last = page[-1]
