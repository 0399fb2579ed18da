"""Checks that the checkpoint of a Spark query is whole: every file that Spark needs to go on exists and is undamaged.

Spark goes on behind the last batch that was done. It needs `metadata`, the files of that batch and of the one that was
begun after it, and for each state store the newest snapshot with all changes since. Not here: the contents of a
checkpoint (`spark/checkpoints/contents.py`).
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.errors import BuckramError, InvalidArgument, NoSuchObject, ObjectDamaged
from buckram.spark.checkpoints.contents import COMMITS, METADATA, OFFSETS, STATE, as_json_line, files_of, query_of
from buckram.state.objects.objects import ObjectInfo, Objects

_VERSIONED = re.compile(r"(\d+)(?:_[^.]+)?\.(delta|snapshot|changelog|zip)")
_SNAPSHOTS, _CHANGES = ("snapshot", "zip"), ("delta", "changelog")
_DEFAULT_STORE = "default"
_FORMATS = ("v1", "v2")
_NO_SNAPSHOT = (
    BuckramError,
    zipfile.BadZipFile,
    zlib.error,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
)
"""Errors of reading a file as a snapshot if it is something else."""


@dataclass(slots=True)
class CheckpointCheck:
    """Result of a check. `problems` is empty for a checkpoint from which its query can go on."""

    path: str
    """Path of the checkpoint, without the namespace."""
    query: str = ""
    batch: int | None = None
    """The last batch that was done."""
    stores: int = 0
    """The number of state stores, counted for each partition."""
    files: int = 0
    """The number of files that Spark needs."""
    bytes: int = 0
    """Bytes of these files, all of which were read and compared with their digests unless only names were checked."""
    problems: list[str] = field(default_factory=list)
    """Faults that were found: one sentence each, which names the file."""


def version_of(file: str) -> int | None:
    """Return the version in the name of a state file; None for a file of another kind."""
    found = _VERSIONED.fullmatch(file.rpartition("/")[2])
    return None if found is None else int(found[1])


async def check_checkpoint(
    objects: Objects, path: str, *, batch: int | None = None, read: bool = True
) -> CheckpointCheck:
    """Check a checkpoint, or what of it is needed to go on behind `batch`. Raises NoSuchObject if there is none.

    `read`: read all files that are needed and compare their digests; otherwise only the names are looked at, and the
    files that say what is needed are read.
    """
    found = CheckpointCheck(path, await query_of(objects, path))
    files = {name: info async for name, info in files_of(objects, path)}
    look = _Look(objects, files, found)
    if not found.query:
        found.problems.append(f"{METADATA}: has no id of a query")
    needed = [METADATA, *await look.batches(batch)]
    if found.batch is not None:
        needed += await look.states(found.batch + 1)
    for name in dict.fromkeys(needed):
        if name not in files:
            continue
        found.files += 1
        found.bytes += files[name].size
        if read and name not in look.looked_at:
            await look.read(name)
    return found


class _Look:
    """One check. Names are without the checkpoint's own."""

    def __init__(self, objects: Objects, files: Mapping[str, ObjectInfo], found: CheckpointCheck) -> None:
        self._objects, self._files, self._found = objects, files, found
        self.looked_at: set[str] = set()
        """Files that were read in full, or of which something is wrong already."""

    async def read(self, name: str) -> None:
        """Read a large file in full, which compares its digest."""
        try:
            async for _ in self._objects.read(f"{self._found.path}/{name}"):
                pass
        except (ObjectDamaged, NoSuchObject) as error:
            self._note(name, str(error))

    async def _get(self, name: str) -> bytes | None:
        """Return a file after checking its digest; None if it differs from what was put."""
        self.looked_at.add(name)
        try:
            return await self._objects.get(f"{self._found.path}/{name}")
        except (ObjectDamaged, NoSuchObject) as error:
            self._note(name, str(error))
            return None

    async def batches(self, wanted: int | None) -> list[str]:
        """Check the logs of batches; returns the files that are needed of them."""
        begun, done = self._numbers(OFFSETS), self._numbers(COMMITS)
        last = done[-1] if wanted is None and done else wanted
        self._found.batch = last
        if wanted is not None:
            begun, done = [n for n in begun if n <= wanted], [n for n in done if n <= wanted]
        for folder, numbers in ((OFFSETS, begun), (COMMITS, done)):
            for number in _gaps(numbers):
                self._note(f"{folder}/{number}", "is missing, with files before and after it")
        needed = [f"{OFFSETS}/{number}" for number in begun if last is None or number >= last]
        if last is not None:
            if last not in done:
                self._note(f"{COMMITS}/{last}", f"is missing: batch {last} was not done, or is not kept any more")
            elif last not in begun:
                self._note(f"{OFFSETS}/{last}", f"is missing, and batch {last} was done")
            needed.append(f"{COMMITS}/{last}")
        ahead = [number for number in begun if number > (-1 if last is None else last) + 1]
        if ahead:
            self._note(f"{OFFSETS}/{ahead[0]}", f"was begun, and batch {ahead[0] - 1} was not done")
        for name in needed:
            if name in self._files and (data := await self._get(name)) is not None:
                self._check_log(name, data.decode(errors="replace"))
        return needed

    def _check_log(self, name: str, text: str) -> None:
        version, *lines = text.splitlines()[:2] or [""]
        if version not in _FORMATS:
            self._note(name, f"begins with {version[:20]!r}; this version of buckram knows {', '.join(_FORMATS)}")
        elif not lines or not isinstance(as_json_line(lines[0]), dict):
            self._note(name, "has no JSON in its second line")

    async def states(self, version: int) -> list[str]:
        """Check all state stores at a version; returns the files that are needed of them."""
        needed: list[str] = []
        for store in await self._stores():
            self._found.stores += 1
            chosen = _chain(self._files, store, version)
            if isinstance(chosen, str):
                self._note(chosen, f"is missing, and the state of version {version} needs it")
                continue
            needed += chosen
            for file in chosen:
                if file.endswith(".zip"):
                    needed += await self._parts(store, file)
        return needed

    async def _stores(self) -> list[str]:
        """Return the directories of all state stores: those that must exist, and those that do."""
        stores: dict[str, None] = {}
        for name in self._files:
            if name.startswith(f"{STATE}/") and version_of(name) is not None:
                stores[name.rpartition("/")[0]] = None
        for name in self._files:
            parts = name.split("/")
            if parts[0] == STATE and len(parts) > 3 and parts[2] == "_metadata":
                stores |= dict.fromkeys(await self._announced(name, "/".join(parts[:2])))
        return sorted(stores)

    async def _announced(self, name: str, operator: str) -> list[str]:
        """Return the stores of an operator as Spark has recorded them."""
        data = await self._get(name)
        lines = (data or b"").decode(errors="replace").splitlines()
        about = as_json_line(lines[-1]) if lines else None
        found: list[str] = []
        try:
            for store in (about.get("stateStoreInfo") or ()) if isinstance(about, dict) else ():
                below = "" if store["storeName"] == _DEFAULT_STORE else f"/{store['storeName']}"
                found += [f"{operator}/{number}{below}" for number in range(int(store["numPartitions"]))]
        except (KeyError, TypeError, ValueError) as error:
            self._note(name, f"does not say which state stores there are ({error!r})")
        return found

    async def _parts(self, store: str, name: str) -> list[str]:
        """Return the files of RocksDB that a snapshot names and that lie beside it."""
        try:
            data = await self._objects.get(f"{self._found.path}/{name}")
            self.looked_at.add(name)
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                lines = archive.read("metadata").decode().splitlines()
            about = json.loads(lines[-1])
            parts = [*_named(about, "sstFiles", f"{store}/SSTs"), *_named(about, "logFiles", f"{store}/logs")]
        except _NO_SNAPSHOT as error:
            self._note(name, f"is no snapshot of RocksDB ({error})")
            return []
        for part, size in parts:
            if part not in self._files:
                self._note(part, f"is missing, and {name} needs it")
            elif self._files[part].size != size:
                self._note(part, f"has {self._files[part].size} bytes, and {name} says {size}")
        return [part for part, _ in parts]

    def _numbers(self, folder: str) -> list[int]:
        start = f"{folder}/"
        return sorted(
            int(n) for name in self._files if name.startswith(start) and (n := name[len(start) :]).isdecimal()
        )

    def _note(self, name: str, why: str) -> None:
        self.looked_at.add(name)
        self._found.problems.append(f"{name}: {why}")


def _chain(files: Iterable[str], store: str, version: int) -> list[str] | str:
    """Return a snapshot of a store and the changes since, up to a version, or the name of the file that is missing."""
    snapshots: dict[int, str] = {}
    changes: dict[int, str] = {}
    kinds: dict[str, int] = defaultdict(int)
    for name in files:
        folder, _, file = name.rpartition("/")
        found = _VERSIONED.fullmatch(file) if folder == store else None
        if found is not None:
            kinds[found[2]] += 1
            (snapshots if found[2] in _SNAPSHOTS else changes)[int(found[1])] = name
    for start in sorted([number for number in snapshots if number <= version] + [0], reverse=True):
        chain = [snapshots[start]] if start in snapshots else []
        if all(number in changes for number in range(start + 1, version + 1)):
            return chain + [changes[number] for number in range(start + 1, version + 1)]
    base = max((number for number in snapshots if number <= version), default=0)
    missing = next(number for number in range(base + 1, version + 1) if number not in changes)
    ending = next((kind for kind in _CHANGES if kinds[kind]), "zip" if kinds["zip"] else _CHANGES[0])
    return f"{store}/{version if ending == 'zip' else missing}.{ending}"


def _gaps(numbers: list[int]) -> list[int]:
    if not numbers:
        return []
    return sorted(set(range(numbers[0], numbers[-1])) - set(numbers))


def _named(about: Any, key: str, folder: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for one in about.get(key) or ():
        names = [value for field, value in one.items() if field.startswith("dfs")]
        found.append((f"{folder}/{names[0]}", int(one["sizeBytes"])))
    return found


def refuse(namespace: str, found: CheckpointCheck) -> None:
    """InvalidArgument with the first problem of a checkpoint that is not whole."""
    if found.problems:
        raise InvalidArgument(
            f"checkpoint {namespace}/{found.path} at batch {found.batch}: {found.problems[0]} "
            f"({len(found.problems)} such); `buckram checkpoint verify` lists them all"
        )
