"""ObjectIndex: names of objects and where their bytes are, as a replicated state machine.

A command is a list of JSON, its first item the verb; `ObjectIndex.apply` says what each does. Refusals begin with a
word and a colon, which `state/objects/refusals.py` turns into typed errors. Not here: the tree
(`core/objects/tree.py`), ledgers (`core/objects/ledger_use.py`), writing and reading bytes (`state/objects/`).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Any

from buckram.core.objects.index_difference import Outline
from buckram.core.objects.ledger_use import LedgerSpace
from buckram.core.objects.rows import NEVER, Extent, ObjectRow, Upload, extents_of, row_of
from buckram.core.objects.snapshot_format import lines_of, read_lines
from buckram.core.objects.tree import (
    Blocked,
    Directory,
    ObjectNames,
    directories,
    find,
    in_the_way,
    leave,
    make_directories,
    parent_of,
    place_for,
    walk,
)
from buckram.errors import CommandRefused, UnknownCommand

EXPIRE_AT_ONCE = PURGE_AT_ONCE = 1000
UPLOAD_US = 7 * 86_400 * 1_000_000
"""Microseconds after which an upload that was not completed is given up."""
MAX_PARTS = 10_000
MAX_OBJECTS = 10_000_000
"""Maximum objects of a namespace: each takes some 600 bytes in the memory of every process that opens it."""


class ObjectIndex(ObjectNames):
    """All objects of a namespace. `now_us` is the time of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.space = LedgerSpace()
        self.uploads: dict[int, Upload] = {}
        self.objects = 0
        """Number of objects, with those in the trash."""
        self.trash: list[Directory] = []
        """Directories that were deleted with all their content; `purge` frees their space step by step."""
        self._version = 0
        self._expiring: list[tuple[int, int]] = []
        """Heap of times of expiry and versions; a version that was removed earlier stays in it until that time."""
        self._expiring_at: dict[int, list[tuple[Directory, str]]] = {}
        """Places of the object with each version, if it expires. A directory that is renamed stays the same one. In a
        mirror it may be under its old and its new name for a while.
        """
        self._sum = 0
        self.doubtful: dict[int, tuple[int, int]] = {}
        """Versions that were put or begun while the time was in doubt: by how much each may end too late for that, and
        the time of the log then.
        """

    # -- commands -----------------------------------------------------------------------------------------

    def apply(self, command: Any) -> Any:
        """Apply a command and return its result.

        begin LEDGER WRITER: this ledger is about to be written. seal LEDGER BYTES: nothing is added to it any more.
        gone LEDGERS: they were deleted. put NAME PUT CONDITION, copy FROM TO CONDITION, rename FROM TO CONDITION,
        delete NAME CONDITION: of objects (rename also of directories); a condition is null, "absent", or the version
        that must be there. upload NAME MOST, part UPLOAD NUMBER SIZE DIGEST EXTENTS SEALED, complete UPLOAD PUT
        CONDITION, abort UPLOAD: in parts; no upload begins where MOST are open. mkdirs PATH, remove PATH RECURSIVE:
        also of directories. purge: free trash. moved NAME VERSION EXTENTS: its bytes were copied. expire: remove what
        has expired. settle: the time is certain again, so what was put in doubt ends when it should. mirror VERSION
        CHANGES SEALED: become what another cluster's index is (`core/objects/index_difference.py`), up to this version
        of it.

        The result of a put, a copy and a completed upload is the row without its extents.
        """
        self.space.now_us = self.now_us
        try:
            match command:
                case ["begin", int(ledger), str(writer)]:
                    if not self.space.begin(ledger, writer):
                        raise CommandRefused(f"lost: ledger {ledger} was given up before it was begun")
                    return None
                case ["seal", int(ledger), int(total)]:
                    self.space.seal(ledger, total)
                    return None
                case ["gone", list(ledgers)]:
                    self.space.gone(ledgers)
                    return None
                case ["put", str(name), dict(put), condition]:
                    return self._put(name, put, condition)
                case ["copy", str(source), str(name), condition]:
                    return self._copy(source, name, condition)
                case ["rename", str(source), str(name), condition]:
                    return self._rename(source, name, condition)
                case ["delete", str(name), condition]:
                    return self._delete(name, condition)
                case ["mkdirs", str(path)]:
                    return make_directories(self.root, path, self.now_us)
                case ["remove", str(path), bool(recursive)]:
                    self._remove_any(path, recursive)
                    return None
                case ["purge"]:
                    return self._purge()
                case ["moved", str(name), int(version), list(extents)]:
                    return self._moved(name, version, extents_of(extents))
                case ["expire"]:
                    return self._expire()
                case ["settle"]:
                    return self._settle()
                case ["mirror", int(version), dict(changes), list(sealed)]:
                    self._mirror(version, changes, sealed)
                    return None
                case ["upload" | "part" | "complete" | "abort", *_]:
                    return self._in_parts(command)
        except Blocked as blocked:
            raise CommandRefused(f"blocked: {blocked}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise UnknownCommand(f"{str(command)[:200]} ({error!r})") from error
        raise UnknownCommand(str(command)[:200])

    def _in_parts(self, command: list[Any]) -> Any:
        match command:
            case ["upload", str(name), *limit]:
                if limit and len(self.uploads) >= limit[0]:
                    raise CommandRefused(f"uploads: {limit[0]}")
                self._version += 1
                self.uploads[self._version] = Upload(name, self.now_us + self._doubt(*limit[1:]))
                return self._version
            case ["part", int(upload), int(number), int(size), str(digest), list(raw), list(sealed)]:
                extents, found = extents_of(raw), self._upload(upload)
                self._check_usable(extents)
                if not 0 <= number < MAX_PARTS:
                    raise CommandRefused(f"invalid: part {number}: numbers are 0 to {MAX_PARTS - 1}")
                self.space.refer(extents)
                old = found.parts.get(number)
                found.parts[number] = (size, digest, extents)
                self._seal_all(sealed)
                if old is not None:
                    self.space.release(old[2])
                return None
            case ["complete", int(upload), dict(put), condition]:
                return self._complete(upload, put, condition)
            case ["abort", int(upload)]:
                if upload in self.uploads:
                    self._drop_upload(upload)
                return None
        raise UnknownCommand(str(command)[:200])

    # -- objects ------------------------------------------------------------------------------------------

    def _check(self, name: str, condition: Any) -> None:
        """Refuse unless the condition holds for what is under the name."""
        node = find(self.root, name)
        if isinstance(node, Directory):
            raise Blocked(f"{name!r} is a directory")
        present = self.look(name)
        if condition == "absent":
            if present is not None:
                raise CommandRefused(f"exists: version {present.version}")
        elif self.objects >= MAX_OBJECTS and node is None:
            raise CommandRefused(f"full: the namespace has {self.objects} objects, the most that it can; use another")
        if condition not in (None, "absent") and (present is None or present.version != condition):
            there = "is not there" if present is None else f"has version {present.version}"
            raise CommandRefused(f"changed: it {there}, and version {condition} was to be there")

    def _check_usable(self, extents: Iterable[Extent]) -> None:
        if not self.space.usable(extents):
            raise CommandRefused("lost: its ledger was given up, put it again")

    def _seal_all(self, sealed: list[Any]) -> None:
        for ledger, total in sealed:
            self.space.seal(ledger, total)

    def _put(self, name: str, put: dict[str, Any], condition: Any) -> list[Any]:
        extents = extents_of(put["extents"])
        self._check(name, condition)
        self._check_usable(extents)
        directory, last = place_for(self.root, name, self.now_us)
        self._version += 1
        pairs = tuple((str(key), str(value)) for key, value in put["metadata"])
        age = put["expires_us"]
        expires = self.now_us + age + self._doubt(put.get("latest_us", 0)) if age else NEVER
        row = ObjectRow(self._version, put["size"], put["digest"], self.now_us, expires, pairs, extents)
        self.space.refer(extents)
        self._seal_all(put["sealed"])
        self._place(directory, last, row)
        return list(row[:-1])

    def _doubt(self, latest_us: int = 0) -> int:
        """Return by how much the time may be later than that of the log, microseconds; record it for the present
        version.
        """
        late = max(latest_us - self.now_us, 0) if latest_us else 0
        if late:
            self.doubtful[self._version] = late, self.now_us
        return late

    def _place(self, directory: Directory, name: str, row: ObjectRow) -> None:
        """Put a row, whose extents are referred to already, in the place of what is there."""
        old = directory.nodes.get(name)
        directory.attach(name, row, self.now_us)
        if isinstance(old, ObjectRow):
            self._forget(directory, name, old)
        self._count(name, row, 1)
        if row.expires_us != NEVER:
            self._will_expire(directory, name, row)

    def _will_expire(self, directory: Directory, name: str, row: ObjectRow) -> None:
        heapq.heappush(self._expiring, (row.expires_us, row.version))
        self._expiring_at.setdefault(row.version, []).append((directory, name))

    def _forget(self, directory: Directory, name: str, row: ObjectRow) -> None:
        """Forget a row that has left the tree."""
        self._count(name, row, -1)
        if row.expires_us != NEVER:
            places = self._expiring_at.pop(row.version, [])
            left = [place for place in places if place != (directory, name)]
            if left:
                self._expiring_at[row.version] = left
            else:
                self.doubtful.pop(row.version, None)
        self.space.release(row.extents)

    def _count(self, name: str, row: ObjectRow, sign: int) -> None:
        self.objects += sign
        found = hashlib.blake2b(f"{name}\0{row!r}".encode(), digest_size=16).digest()
        self._sum = (self._sum + sign * int.from_bytes(found, "big")) % 2**128

    def _needed(self, name: str) -> ObjectRow:
        row = self.look(name)
        if row is None:
            node = find(self.root, name)
            raise CommandRefused(f"absent: {name!r} is {'a directory' if isinstance(node, Directory) else 'not there'}")
        return row

    def _copy(self, source: str, name: str, condition: Any) -> list[Any]:
        return self._place_again(self._needed(source)._replace(time_us=self.now_us), name, condition)

    def _place_again(self, row: ObjectRow, name: str, condition: Any) -> list[Any]:
        """Put the bytes of a row under another name as well."""
        self._check(name, condition)
        directory, last = place_for(self.root, name, self.now_us)
        self._version += 1
        self.space.refer(row.extents)
        copied = row._replace(version=self._version)
        if row.version in self.doubtful:
            self.doubtful[self._version] = self.doubtful[row.version]
        self._place(directory, last, copied)
        return list(copied[:-1])

    def _rename(self, source: str, name: str, condition: Any) -> None:
        node = find(self.root, source)
        if isinstance(node, Directory):
            if name == source:
                return
            if f"{name}/".startswith(f"{source}/"):
                raise Blocked(f"{name!r} is below {source!r}")
            if find(self.root, name) is not None:
                raise CommandRefused(f"exists: {name!r} is there")
            directory, last = place_for(self.root, name, self.now_us)
            # Attached first: a directory that loses its last child may vanish, and it may be the new parent.
            assert node.parent is not None
            parent, old = node.parent, node.name
            directory.attach(last, node, self.now_us)
            parent.detach(old, self.now_us)
            node.name, node.parent = last, directory
            return
        row = self._needed(source)
        if name != source:
            self._place_again(row, name, condition)
            self._remove(source)

    def _remove_any(self, path: str, recursive: bool) -> None:
        """Delete an object or a directory in one step, however much is in it; what was in it is purged later."""
        node = self.node(path)
        if isinstance(node, ObjectRow):
            self._remove(path)
            return
        if node is None or node.parent is None:
            raise CommandRefused(f"absent: {path!r} is not there")
        if node.nodes and not recursive and any(True for _ in walk(node, "", "")):
            raise CommandRefused(f"filled: {path!r} is not empty")
        node.parent.detach(node.name, self.now_us)
        self.trash.append(node)

    def _purge(self) -> bool:
        """Free some of what is in the trash; return whether more is left."""
        left = PURGE_AT_ONCE
        while self.trash and left > 0:
            directory = self.trash[-1]
            # In the order of names, as tables of replicas that began with a snapshot have another order.
            for key in list(islice(directory.order.since(""), left)):
                node = directory.detach(key.rstrip("/"), self.now_us)
                left -= 1
                if isinstance(node, Directory):
                    self.trash.insert(0, node)
                else:
                    self._forget(directory, key, node)
            if not directory.nodes:
                self.trash.remove(directory)
        return bool(self.trash)

    def _delete(self, name: str, condition: Any) -> int:
        row = self._needed(name)
        self._check(name, condition)
        self._remove(name)
        return row.version

    def _remove(self, name: str) -> None:
        place = parent_of(self.root, name)
        assert place is not None
        row = place[0].detach(place[1], self.now_us)
        assert isinstance(row, ObjectRow)
        self._forget(*place, row)

    def _moved(self, name: str, version: int, extents: tuple[Extent, ...]) -> bool:
        """Record that the bytes of this version are elsewhere, too, and read there from now on. Return False if the
        version is gone.
        """
        place, row = parent_of(self.root, name), find(self.root, name)
        if place is None or not isinstance(row, ObjectRow) or row.version != version:
            return False
        self._check_usable(extents)
        self.space.refer(extents)
        self._count(place[1], row, -1)
        moved = row._replace(extents=extents)
        place[0].nodes[place[1]] = moved
        self._count(place[1], moved, 1)
        self.space.release(row.extents)
        return True

    # -- mirrors ------------------------------------------------------------------------------------------

    def outline(self) -> Outline:
        """Return all names of this moment. Tables are copied, and no row."""
        tables = {path: (found.kept, dict(found.nodes)) for path, found in directories(self.root)}
        return Outline(self._version, tables)

    def _mirror(self, version: int, changes: dict[str, Any], sealed: list[Any]) -> None:
        """Become what the other index is, removing what is in the way."""
        rows = [(str(name), row_of(raw)) for name, raw in changes["put"]]
        for _, row in rows:
            self._check_usable(row.extents)
        for _, row in rows:
            self.space.refer(row.extents)  # First, as those that go may have the same bytes.
        self._seal_all(sealed)
        for name in changes["gone"]:
            if isinstance(find(self.root, name), ObjectRow):
                self._remove(name)
        for path in changes["unkept"]:
            leave(self.root, path, self.now_us)
        for name, row in rows:
            self._clear(name)
            self._place(*place_for(self.root, name, self.now_us), row)
        for path in changes["kept"]:
            self._clear(f"{path}/.")
            place_for(self.root, f"{path}/.", self.now_us)[0].kept = True
        self._version = max(self._version, version)

    def _clear(self, name: str) -> None:
        place = in_the_way(self.root, name)
        if place is not None:
            node = place[0].detach(place[1], self.now_us)
            if isinstance(node, Directory):
                self.trash.append(node)
            else:
                self._forget(*place, node)

    # -- parts and time -----------------------------------------------------------------------------------

    def _upload(self, upload: int) -> Upload:
        found = self.uploads.get(upload)
        if found is None:
            raise CommandRefused(f"absent: upload {upload} is not there: it was completed, aborted, or left for a week")
        return found

    def _drop_upload(self, upload: int) -> None:
        self.doubtful.pop(upload, None)
        for _, _, extents in self.uploads.pop(upload).parts.values():
            self.space.release(extents)

    def _complete(self, upload: int, put: dict[str, Any], condition: Any) -> list[Any]:
        found = self._upload(upload)
        parts = [found.parts[number] for number in sorted(found.parts)]
        # No more numbers are made than there are parts: a log may say any.
        if sorted(found.parts) != list(islice(range(put["parts"]), len(found.parts) + 1)):
            raise CommandRefused(f"incomplete: parts {sorted(found.parts)[:20]} of {put['parts']} are there")
        whole = hashlib.sha256("".join(digest for _, digest, _ in parts).encode()).hexdigest()
        digest, size = f"parts:{whole}-{len(parts)}", sum(size for size, _, _ in parts)
        extents = [extent for _, _, extents in parts for extent in extents]
        whole_put = {**put, "digest": digest, "size": size, "extents": extents, "sealed": []}
        result = self._put(found.name, whole_put, condition)
        self._drop_upload(upload)
        return [found.name, *result]

    @property
    def expiry_due(self) -> bool:
        """Return whether an expiry is due at the time of the log."""
        return bool(self._expiring) and self._expiring[0][0] <= self.now_us

    @property
    def next_expiry_us(self) -> int | None:
        """Return when the next object expires or the next upload is given up, microseconds UTC; None if none will."""
        times = [one.time_us + UPLOAD_US + 1 for one in self.uploads.values()]
        return min([*times, *(at for at, _ in self._expiring[:1])], default=None)

    def _expire(self) -> int:
        removed = 0
        while self.expiry_due and removed < EXPIRE_AT_ONCE:
            version = heapq.heappop(self._expiring)[1]
            for directory, name in tuple(self._expiring_at.get(version, ())):
                row = directory.nodes[name]
                assert isinstance(row, ObjectRow)
                if row.expired(self.now_us):
                    directory.detach(name, self.now_us)
                    self._forget(directory, name, row)
                    removed += 1
        for upload in [number for number, one in self.uploads.items() if one.time_us < self.now_us - UPLOAD_US]:
            self._drop_upload(upload)
            removed += 1
        return removed

    def _settle(self) -> int:
        """End what was put in doubt at its right time: the log now shows which of the two possible times was true."""
        doubtful, self.doubtful = self.doubtful, {}
        for version, (late, at) in doubtful.items():
            if self.now_us - at < late // 2:
                _end_later(self, version, -late)
        return len(doubtful)

    def _replace(self, directory: Directory, name: str, old: ObjectRow, row: ObjectRow) -> None:
        """Replace a row by one with other times."""
        self._count(name, old, -1)
        directory.nodes[name] = row
        self._count(name, row, 1)
        heapq.heappush(self._expiring, (row.expires_us, row.version))

    def set_back(self, time_us: int) -> None:
        """Set the time of the log back to this one, as it was ahead (as KeepsTimes); later dates become this one."""
        self.space.set_back(time_us)
        for upload in self.uploads.values():
            upload.time_us = min(upload.time_us, time_us)
        self.doubtful = {version: (late, min(at, time_us)) for version, (late, at) in self.doubtful.items()}
        for places in self._expiring_at.values():
            for directory, name in places:
                row = directory.nodes[name]
                if isinstance(row, ObjectRow) and row.time_us > time_us:
                    ahead = row.time_us - time_us
                    self._replace(
                        directory, name, row, row._replace(time_us=time_us, expires_us=row.expires_us - ahead)
                    )

    # -- snapshots ----------------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[bytes]:
        """Return lines of JSON, which are made while later commands are applied."""
        return lines_of(self.dump(), self.root, list(self.trash))

    def dump(self) -> list[Any]:
        """Return all but the trees, for JSON."""
        uploads = [[number, *one.dump()] for number, one in sorted(self.uploads.items())]
        doubtful = [[version, *times] for version, times in sorted(self.doubtful.items())]
        more = [doubtful] if doubtful else []
        return [self._version, self.now_us, self.objects, f"{self._sum:x}", sorted(self.space.dump()), uploads, *more]

    def restore(self, data: bytes) -> None:
        head, self.root, self.trash = read_lines(data)
        self._version, self.now_us, self.objects, total, space, uploads, *more = head
        self.doubtful = {version: (late, at) for version, late, at in (more[0] if more else ())}
        self._sum = int(total, 16)
        self.space = LedgerSpace.load(space)
        self.uploads = {number: Upload.load(*fields) for number, *fields in uploads}
        for tree in (self.root, *self.trash):
            for _, directory in directories(tree):
                for name, node in directory.nodes.items():
                    if isinstance(node, ObjectRow) and node.expires_us != NEVER:
                        self._will_expire(directory, name, node)

    def digest(self) -> bytes:
        """Return a sum over all objects, kept up to date. Of names it covers only the last part, since results tell the
        rest.
        """
        return b"%d %d %d %032x" % (self._version, self.objects, self.space.live_bytes, self._sum)


def _end_later(index: ObjectIndex, version: int, by_us: int) -> None:
    """Extend the life of the upload or objects with this version by so many microseconds; negative shortens it."""
    if version in index.uploads:
        index.uploads[version].time_us += by_us
    for directory, name in index._expiring_at.get(version, ()):
        row = directory.nodes[name]
        assert isinstance(row, ObjectRow)
        index._replace(directory, name, row, row._replace(expires_us=row.expires_us + by_us))
