"""Backups of databases by their policies: made, verified at their place, recorded, and the old ones deleted.

A janitor runs them in each of its passes, in this order: the file is made and SQLite checks it, it is copied to the
place and read back, it is recorded in the metadata store, older files are deleted. A process that is killed or fails
therefore leaves the old backups, and the next pass finds a file that was not recorded and counts it. One process at a
time works on one database; two do no harm. Not here: names and rules (`core/db/backups.py`), reading a state
(`state/db/opening.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from buckram.core.db.backups import (
    Backup,
    BackupFile,
    BackupRecord,
    decode_kept,
    directory_of,
    encode_kept,
    file_name,
    files_of,
    is_due,
    is_old,
    location_of,
    superseded,
    unfinished_of,
)
from buckram.core.security.encryption import key_id_of
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.errors import (
    BuckramError,
    KeyExists,
    MetadataError,
    NoSuchKey,
    NoSuchLedger,
    NoSuchStream,
    ReadFailed,
    StreamError,
    VersionConflict,
    WriteFailed,
)
from buckram.state.db.settings import check_engine
from buckram.state.db.table_engine.directories import Directory
from buckram.streams.maintain.janitor_report import JanitorReport, note_problem
from buckram.streams.shared.locations import WITHIN_S, FileLocation, in_thread
from buckram.streams.shared.metadata import StreamStore, retry_metadata

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.core.streams.metadata.head import Head
    from buckram.core.streams.names import StreamName
    from buckram.core.streams.policy import Policy

PASS_S = 60.0
"""Time budget of one janitor pass, seconds: after it no further backup begins, so that streams have their turn."""
AGAIN_S = 300.0
"""Longest pause after a failed backup, seconds; the pause is otherwise a tenth of the policy's interval."""
_SLOWEST_BYTES_PER_S = 1024 * 1024
"""Slowest transfer that a place may have; a slower one is treated as unreachable."""
_READ_WITHIN_S = 3600.0
"""Deadline for reading a backup whose size is not known, seconds."""
_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Due:
    """A database of which a backup is due, as a pass found it. `last`: the time of the newest one."""

    last: int
    name: StreamName
    head: Head
    policy: Policy
    now: int | None


async def read_kept(streams: StreamStore, uid: str) -> BackupRecord:
    """Return the record of the backups of the database with this uid; an empty one if there is none.

    Raises MalformedRecord, MetadataUnavailable.
    """
    key = streams.layout.backup(uid)
    with suppress(NoSuchKey):
        return decode_kept(key, (await retry_metadata(partial(streams.keys.get, key))).value)
    return BackupRecord()


class Backups:
    """The janitor's work on backups of databases: call `look` for each stream of a pass, then `carry_out`."""

    def __init__(self, client: LedgerClient, places: Mapping[str, str], directory: Path | None = None) -> None:
        """`places`: locations by their names. `directory`: for files that are made; default that of temporary ones."""
        self._client, self._places, self._directory = client, places, directory
        self._streams = StreamStore(client.services.store)
        self._nonce = f"{client.services.runtime.rng.getrandbits(128):032x}".encode()
        self._due: dict[str, _Due] = {}
        """Backups that are due in this pass, by the uid of the database."""
        self._waiting: dict[str, tuple[float, str]] = {}
        """Failed backups by uid of the database: time of the next attempt (loop time), and why it failed."""

    async def look(self, name: StreamName, head: Head, policy: Policy, now: int | None) -> None:
        """Note whether a backup of this stream is due; a stream that is not a database's log never has one.

        `now` is the current time by which the policy's interval is measured, None while the clock is in doubt.
        """
        if not policy.backup_every_s or purpose_of(str(name), head) is not Purpose.DATABASE:
            return
        kept = await read_kept(self._streams, head.uid)
        if is_due(kept, policy, now, self._certain()):
            self._due[head.uid] = _Due(kept.newest.time if kept.newest else 0, name, head, policy, now)

    async def carry_out(self, report: JanitorReport) -> None:
        """Make the backups that are due, oldest last backup first. A failure is reported, and recorded."""
        due, self._due = sorted(self._due.values(), key=lambda one: one.last), {}
        self._waiting = {uid: self._waiting[uid] for uid in (one.head.uid for one in due) if uid in self._waiting}
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for one in due:
            again, why = self._waiting.get(one.head.uid, (0.0, ""))
            if loop.time() < again:
                report.problems.append(why)
            elif loop.time() - begun < PASS_S:
                await self._attempt(one, report)

    async def _attempt(self, one: _Due, report: JanitorReport) -> None:
        try:
            async with self._claimed(one.head.uid) as ours:
                if ours:
                    report.backups += await self._back_up(one)
            self._waiting.pop(one.head.uid, None)
        except NoSuchStream:
            return  # It was deleted, or made anew under its name.
        except Exception as error:  # Malformed records in the database's log may raise more than BuckramErrors.
            failed = WriteFailed(-1, str(error)) if isinstance(error, OSError) else error
            note_problem(report, f"backup of {one.name}", failed)
            again = asyncio.get_running_loop().time() + min(one.policy.backup_every_s / 10, AGAIN_S)
            self._waiting[one.head.uid] = again, report.problems[-1]
            with suppress(BuckramError):  # It is reported all the same.
                await self._write_trouble(one, str(error))

    @asynccontextmanager
    async def _claimed(self, uid: str) -> AsyncIterator[bool]:
        """Claim this database by an ephemeral key; yields whether this process has it, False if another one does."""
        key, keys = self._streams.layout.backup_claim(uid), self._streams.keys
        try:
            await keys.create(key, self._nonce, ephemeral=True)
        except KeyExists:
            with suppress(NoSuchKey):
                if (await keys.get(key)).value != self._nonce:  # Else it is ours: a reply was lost.
                    yield False
                    return
        try:
            yield True
        finally:
            with suppress(MetadataError):
                found = await keys.get(key)
                if found.value == self._nonce:
                    await keys.delete(key, found.version)

    async def _back_up(self, one: _Due) -> int:
        """Make a backup, unless another process has made one meanwhile. Returns how many were made."""
        uid, policy = one.head.uid, one.policy
        if not is_due(await read_kept(self._streams, uid), policy, one.now, self._certain()):
            return 0
        root = location_of(one.name, policy, self._places)
        await in_thread(-1, root, FileLocation(root, "backups").check_there)
        await self._check_plain(one.name, one.head)
        place = FileLocation(directory_of(root, one.name), "backups")
        names = await in_thread(-1, place.location, place.names)
        for left in unfinished_of(uid, names):
            await in_thread(-1, place.location, partial(place.delete, left))
        files = Directory(self._directory)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, files.sweep)
            found, made = await self._found(one, place, files_of(uid, names), files.path), 0
            if found is None:
                found, made = await self._made(one, place, files.path), 1
        finally:
            await loop.run_in_executor(None, files.close)
        await self._record(uid, found)
        await self._thin_out(one, place, found.file)
        return made

    async def _made(self, one: _Due, place: FileLocation, directory: Path) -> Backup:
        """Make a file that has all that was committed before this call, and put it to the place. Verified."""
        begun, ours = self._client.services.clocks.now(), directory / "backup.db"
        check_engine()
        # What reads a state needs the table engine, without which the other work of a janitor goes on.
        from buckram.state.db.transfer import backup
        from buckram.streams.namespace import StreamNamespace

        ns = StreamNamespace(self._client, one.name.namespace)
        offset, size = await backup(self._client, ns, one.name, ours)
        if (await self._streams.read(one.name)).head.uid != one.head.uid:
            raise NoSuchStream(str(one.name), "was deleted and created anew")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _check_integrity, ours, "the backup that was made")
        digest, _ = await loop.run_in_executor(None, partial(_digest_of, FileLocation(str(directory)), ours.name))
        file, within_s = file_name(one.head.uid, offset, begun, digest), WITHIN_S + size / _SLOWEST_BYTES_PER_S
        await in_thread(-1, place.location, partial(place.put, file, str(ours)), within_s)
        back, size = await in_thread(-1, place.location, partial(_digest_of, place, file), within_s)
        if back != digest:
            await in_thread(-1, place.location, partial(place.delete, file))
            raise WriteFailed(-1, f"{file} came back from {place.location} with other bytes than were written")
        return Backup(one.head.uid, one.policy.backup_to, file, offset, size, digest, begun)

    async def _found(self, one: _Due, place: FileLocation, files: list[BackupFile], directory: Path) -> Backup | None:
        """Return the newest backup at the place if it is young enough: its maker died before it was recorded."""
        if not files or is_old(files[-1].time, one.policy.backup_every_s, one.now, self._certain()):
            return None
        newest, copy = files[-1], directory / "found.db"
        read = partial(_digest_of, place, newest.name, copy)
        try:
            digest, size = await in_thread(-1, place.location, read, _READ_WITHIN_S)
            await asyncio.get_running_loop().run_in_executor(None, _check_integrity, copy, newest.name)
        except WriteFailed:
            return None  # It has faults. Another one is made beside it.
        if not digest.startswith(newest.digest):
            return None
        return Backup(one.head.uid, one.policy.backup_to, newest.name, newest.offset, size, digest, newest.time)

    async def _check_plain(self, name: StreamName, head: Head) -> None:
        """Raise StreamError if entries are encrypted, since the files outside the cluster would not be."""
        newest = [*(row.ledger for row in head.tail[-1:]), *(row.ledger for row in (head.snapshots or ())[-1:])]
        for ledger in newest:
            with suppress(NoSuchLedger):  # It was replaced meanwhile.
                kept = await retry_metadata(partial(self._client.services.store.read_ledger, ledger))
                if key_id_of(kept.metadata.custom_metadata):
                    raise StreamError(
                        str(name),
                        f"the entries of ledger {ledger} are encrypted, and backups outside the cluster would not be; "
                        f"take backup_every_s out of its policy: `buckram stream set {name} --set backup_every_s=0`",
                    )

    # -- what is written down -----------------------------------------------------------------------------

    async def _record(self, uid: str, made: Backup) -> None:
        """Record a backup, unless another process has recorded a newer one at the same place."""

        def change(kept: BackupRecord) -> BackupRecord:
            newest = kept.newest
            if newest is not None and newest.place == made.place and newest.offset > made.offset:
                return kept
            return BackupRecord(made, "", kept.since or made.time)

        await self._change(uid, change)

    async def _write_trouble(self, one: _Due, why: str) -> None:
        now = self._client.services.clocks.now()
        await self._change(one.head.uid, lambda kept: replace(kept, trouble=why, since=kept.since or now))

    async def _change(self, uid: str, change: Callable[[BackupRecord], BackupRecord]) -> None:
        key, keys = self._streams.layout.backup(uid), self._streams.keys
        while True:
            try:
                found = await retry_metadata(partial(keys.get, key))
                before = decode_kept(key, found.value)
                if (after := change(before)) != before:
                    await keys.set(key, encode_kept(after), found.version)
                return
            except NoSuchKey:
                with suppress(KeyExists):
                    await keys.create(key, encode_kept(change(BackupRecord())))
                    return
            except VersionConflict:
                continue

    async def _thin_out(self, one: _Due, place: FileLocation, recorded: str) -> None:
        """Delete the backups of this database that the policy no longer keeps, and nothing else."""
        names = await in_thread(-1, place.location, place.names)
        for file in superseded(files_of(one.head.uid, names), one.policy.backup_keep, recorded):
            await in_thread(-1, place.location, partial(place.delete, file))

    def _certain(self) -> int | None:
        return self._client.services.clocks.moment().certain


def _check_integrity(path: Path, what: str) -> None:
    """Raise WriteFailed if SQLite finds faults in a file. Blocks."""
    from buckram.state.db.transfer import integrity_faults

    if faults := integrity_faults(path):
        raise WriteFailed(-1, f"{what} has faults: {faults[0]}")


def _digest_of(place: FileLocation, file: str, copy: Path | None = None) -> tuple[str, int]:
    """Return the SHA-256 (hexadecimal) and the size of a file, and write it to `copy`, too. Blocks.

    Raises ReadFailed, OSError.
    """
    digest, size = hashlib.sha256(), 0
    with place.open(file) as source, nullcontext() if copy is None else copy.open("wb") as target:
        while piece := _piece_of(place, source):
            digest.update(piece)
            size += len(piece)
            if target is not None:
                target.write(piece)
    return digest.hexdigest(), size


def _piece_of(place: FileLocation, source: BinaryIO) -> bytes:
    try:
        return source.read(_PIECE)
    except Exception as error:  # Each file system has errors of its own.
        raise ReadFailed(-1, f"{place.what} at {place.location} is away: {error!r}") from None
