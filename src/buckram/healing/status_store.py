"""Keys of our own by which auditors and replicators inform each other and people: brake, reasons for waiting, progress.

Below `own`/healing: `brake` (by the auditor), `proceed` (an operator's permission), `waiting/ID` (reasons, by the last
replicator that tried), `round` (changes when ledgers were marked), `checks` (last results), `workers/NAME` (progress,
ephemeral), `attendance` (which bookies were away, and whose copies were not looked at since).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from buckram.core.healing.absences import Attendance, parse_attendance
from buckram.core.healing.lost_bookies import HealingBrake
from buckram.core.healing.status import WaitingLedger, parse_waiting
from buckram.errors import KeyExists, MalformedRecord, NoSuchKey, VersionConflict
from buckram.metadata.tree.key_operations import all_names, remove
from buckram.seams import MetadataStore, Notify
from buckram.types import BookieId, LedgerId

_PAGE = 1000
_DIGITS = 19


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Progress of one replicator at the moment of its report."""

    worker: str
    ledgers: tuple[LedgerId, ...]
    """Ledgers that are being copied."""
    left: int
    """Number of marked ledgers that it knows of and has not begun."""
    copied_ledgers: int
    copied_bytes: int
    bytes_per_s: float
    left_bytes: int
    """Estimate of the bytes to copy for all ledgers that it knows of."""


class HealingStatusStore:
    """The keys of one cluster."""

    def __init__(self, store: MetadataStore) -> None:
        self._keys = store.keys
        self._base = f"{store.own}/healing"

    # -- the brake ----------------------------------------------------------------------------------------

    async def brake(self, watch: Notify | None = None) -> HealingBrake | None:
        """Return the brake; None if copying is allowed. The watch fires when that may have changed.

        Raises MalformedRecord.
        """
        found = await self._read(f"{self._base}/brake", watch)
        if found is None or not found:
            return None
        bookies, why = found.get("bookies"), found.get("why")
        if not isinstance(bookies, list) or not isinstance(why, str):
            raise MalformedRecord(f"{self._base}/brake: not a brake ({found!r:.80}); delete it")
        return HealingBrake(tuple(map(str, bookies)), why)

    async def set_brake(self, brake: HealingBrake | None) -> None:
        await self._write(f"{self._base}/brake", asdict(brake) if brake else {})

    async def allowed(self, watch: Notify | None = None) -> tuple[BookieId, ...]:
        """Return the bookies for which an operator said that copying shall proceed."""
        found = await self._read(f"{self._base}/proceed", watch)
        return tuple(map(str, found.get("bookies", ()))) if found else ()

    async def proceed(self) -> tuple[BookieId, ...]:
        """Let copying go on for the bookies that the brake names; return them."""
        brake = await self.brake()
        bookies = brake.bookies if brake else ()
        if bookies:
            await self._write(f"{self._base}/proceed", {"bookies": [*bookies]})
        return bookies

    # -- rounds -------------------------------------------------------------------------------------------

    async def marked(self) -> None:
        """Wake the replicators: ledgers were marked."""
        key = f"{self._base}/round"
        with suppress(VersionConflict, KeyExists, NoSuchKey):  # then another process has just woken them
            try:
                await self._keys.set(key, b"", (await self._keys.get(key)).version)
            except NoSuchKey:
                await self._keys.create(key, b"")

    async def watch_marks(self, watch: Notify) -> None:
        """Set a watch that fires when our auditor has marked ledgers. Apache's auditor does not write this key."""
        with suppress(NoSuchKey):
            await self._keys.get(f"{self._base}/round", watch)

    # -- waiting ledgers ----------------------------------------------------------------------------------

    def _waiting_key(self, ledger: LedgerId) -> str:
        return f"{self._base}/waiting/{ledger:0{_DIGITS}d}"

    async def say_waiting(self, waiting: WaitingLedger) -> None:
        """Replace the ledger's reasons for waiting."""
        await self._put(self._waiting_key(waiting.ledger), waiting.encode())

    async def clear_waiting(self, ledgers: Collection[LedgerId]) -> None:
        """Remove the reasons of these ledgers. Lists all ledgers that wait instead of asking for each key."""
        folder, wanted = f"{self._base}/waiting", {f"{ledger:0{_DIGITS}d}" for ledger in ledgers}
        async for name in all_names(self._keys, folder):
            if name in wanted:
                await remove(self._keys, f"{folder}/{name}")

    async def waiting(self) -> AsyncIterator[WaitingLedger]:
        """Yield the reasons of all ledgers that wait, by ledger; a record that cannot be read is left out."""
        folder = f"{self._base}/waiting"
        async for name in all_names(self._keys, folder):
            if not name.isdigit():
                continue
            with suppress(NoSuchKey, MalformedRecord):
                key = f"{folder}/{name}"
                yield parse_waiting(key, int(name), (await self._keys.get(key)).value)

    # -- checks of all ledgers ----------------------------------------------------------------------------

    async def say_checked(self, check: str, result: Mapping[str, object]) -> None:
        """Write the result of the last complete run of a check."""
        await self._write(f"{self._base}/checks", {**await self.checked(), check: dict(result)})

    async def checked(self) -> dict[str, dict[str, Any]]:
        """Return the last results by name of the check; one that cannot be read is left out."""
        try:
            found = await self._read(f"{self._base}/checks", None) or {}
        except MalformedRecord:
            return {}
        return {check: result for check, result in found.items() if isinstance(result, dict)}

    # -- attendance ----------------------------------------------------------------------------------------

    async def attendance(self) -> tuple[Attendance, int]:
        """Return which bookies were away, and the version of the record; -1 if there is none.

        Raises MalformedRecord.
        """
        key = f"{self._base}/attendance"
        try:
            found = await self._keys.get(key)
        except NoSuchKey:
            return Attendance(), -1
        return parse_attendance(key, found.value), found.version

    async def say_attendance(self, attendance: Attendance, version: int) -> int:
        """Write which bookies were away; return the new version.

        Raises VersionConflict, KeyExists or NoSuchKey if another auditor has written it.
        """
        key, value = f"{self._base}/attendance", attendance.encode()
        if version < 0:
            return await self._keys.create(key, value)
        return await self._keys.set(key, value, version)

    # -- progress -----------------------------------------------------------------------------------------

    async def report(self, progress: CopyProgress) -> None:
        """Write a replicator's progress; the key goes with the session of its replicator."""
        await self._put(
            f"{self._base}/workers/{progress.worker}", json.dumps(asdict(progress)).encode(), ephemeral=True
        )

    async def progress(self) -> list[CopyProgress]:
        """Return the progress of all our replicators that live; a report that cannot be read is left out."""
        found: list[CopyProgress] = []
        async for name in all_names(self._keys, f"{self._base}/workers"):
            raw = await self._read(f"{self._base}/workers/{name}", None)
            if raw:
                with suppress(TypeError, KeyError):
                    raw["ledgers"] = tuple(raw["ledgers"])
                    found.append(CopyProgress(**raw))
        return found

    # -- inside -------------------------------------------------------------------------------------------

    async def _read(self, key: str, watch: Notify | None) -> dict[str, Any] | None:
        try:
            value = (await self._keys.get(key, watch)).value
        except NoSuchKey:
            return None
        try:
            found = json.loads(value)
        except ValueError:
            raise MalformedRecord(f"{key}: not JSON; delete it") from None
        return found if isinstance(found, dict) else None

    async def _write(self, key: str, record: dict[str, Any]) -> None:
        await self._put(key, json.dumps(record).encode())

    async def _put(self, key: str, value: bytes, *, ephemeral: bool = False) -> None:
        """Write a key whatever its version: the last writer wins.

        These are reports; nothing is decided by them except by the brake, which only the elected auditor writes.
        """
        while True:
            try:
                found = await self._keys.get(key)
                if found.value != value:
                    await self._keys.set(key, value, found.version)
                return
            except NoSuchKey:
                with suppress(KeyExists):
                    await self._keys.create(key, value, ephemeral=ephemeral)
                    return
            except VersionConflict:
                continue
