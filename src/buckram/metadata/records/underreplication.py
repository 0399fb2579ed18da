"""The underreplication tree on any KeyStore: marks, locks, the switch, the delay and the dates of checks.

On ZooKeeper it is Apache's tree, so Apache's auditor and workers share the work. Operations are conditional as theirs
are; the records are core/healing/records. Not here: the election of the auditor (`metadata/records/auditor_election`),
what marks mean (`core/healing`), and reasons for waiting, which Apache's records have no room for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import NamedTuple

from buckram.core.healing.records import (
    EVERY_MEMBER,
    LAYOUT,
    TreePaths,
    UnderreplicationMark,
    check_layout,
    encode_date,
    encode_holder,
    encode_mark,
    leaf_of,
    ledger_of,
    ledger_of_levels,
    levels_of,
    parse_date,
    parse_delay,
    parse_holder,
    parse_mark,
)
from buckram.errors import KeyExists, KeyNotEmpty, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.metadata.tree.key_grammar import split
from buckram.metadata.tree.key_operations import all_children, all_names, overwrite
from buckram.seams import KeyStore, Notify
from buckram.types import BookieId, CheckVersion, Create, Delete, LedgerId

_PAGE, _TRIES = 1000, 20


class Delay(NamedTuple):
    """Delay for which lost bookies are waited for. Each write makes another version, also one of the same value."""

    seconds: float
    version: int
    """Version of the key; -1 if it was never written."""


class Candidate(NamedTuple):
    """A ledger that may be marked: it has a folder for its mark."""

    ledger: LedgerId
    folder_version: int


class Underreplication:
    """Marks and locks of one session. `holder` is the name that its locks show."""

    def __init__(self, keys: KeyStore, root: str, holder: str) -> None:
        self.paths = TreePaths(root)
        self._keys, self._holder = keys, holder
        self._held: dict[LedgerId, int] = {}
        """Versions of the locks that were taken here, by ledger."""

    async def prepare(self) -> None:
        """Make the tree if there is none. Raises MalformedRecord if it is of a kind that is not known."""
        paths = self.paths
        with suppress(KeyExists):
            await self._keys.create(paths.layout, LAYOUT)
        check_layout(paths.layout, (await self._keys.get(paths.layout)).value)
        for folder in (paths.marks, paths.locks):
            with suppress(KeyExists):
                await self._keys.create(folder, b"")

    # -- marks --------------------------------------------------------------------------------------------

    async def mark(self, ledger: LedgerId, replicas: Collection[BookieId], now_ms: int) -> None:
        """Mark a ledger as lacking copies. An existing mark gets the new names, and always a new version.

        The version shows whoever checked the ledger before that its mark may not be deleted. Without `replicas` every
        copy is to be looked at; that is not forgotten when names come later (EVERY_MEMBER).
        """
        key, new = self.paths.mark(ledger), encode_mark(tuple(replicas), now_ms)
        with suppress(KeyExists):  # of the folder, which is this ledger's alone: both of them are one request
            await self._keys.multi([Create(split(key)[0], b""), Create(key, new)])
            return
        for _ in range(_TRIES):
            try:
                await self._keys.create(key, new)
                return
            except KeyExists:
                pass
            try:
                found = await self._keys.get(key)
                names = parse_mark(key, ledger, found.value, found.version).replicas
                if not names or not replicas:  # one of the two asks for a look at every member
                    names = (EVERY_MEMBER, *(name for name in names if name != EVERY_MEMBER))
                names += tuple(name for name in replicas if name not in names)
                await self._keys.set(key, encode_mark(names, now_ms), found.version)
                return
            except (NoSuchKey, VersionConflict):
                continue
        raise MetadataUnavailable(f"{key}: the mark changes too fast; try again")

    async def read_mark(self, ledger: LedgerId) -> UnderreplicationMark | None:
        """Return the ledger's mark; None if it has none. Raises MalformedRecord."""
        key = self.paths.mark(ledger)
        try:
            found = await self._keys.get(key)
        except NoSuchKey:
            return None
        return parse_mark(key, ledger, found.value, found.version)

    async def marked(self, after: LedgerId = -1) -> AsyncIterator[LedgerId]:
        """Yield the ids of marked ledgers above `after`, ascending; none that stays marked meanwhile is left out."""
        floor = [*levels_of(after), leaf_of(after)] if after >= 0 else []
        async for leaf in self._walk(self.paths.marks, 0, floor):
            ledger = ledger_of(leaf)
            if ledger is not None and ledger > after:
                yield ledger

    async def candidates(self) -> AsyncIterator[Candidate]:
        """Yield ledgers that have a folder for their mark, ascending.

        Not each is marked, but this reads no single mark.
        """
        async for folder in self._above_candidates(self.paths.marks, 0):
            levels = folder.removeprefix(f"{self.paths.marks}/").split("/")
            async for name, found in all_children(self._keys, folder):
                ledger = ledger_of_levels([*levels, name])
                if ledger is not None:
                    yield Candidate(ledger, found.version)

    async def _above_candidates(self, folder: str, depth: int) -> AsyncIterator[str]:
        async for name in all_names(self._keys, folder):
            if depth == 2:
                yield f"{folder}/{name}"
                continue
            async for found in self._above_candidates(f"{folder}/{name}", depth + 1):
                yield found

    async def _walk(self, folder: str, depth: int, floor: list[str]) -> AsyncIterator[str]:
        """Yield leaves below `folder`; `floor` is the path, one name a level, of what was seen before."""
        if depth < 4 and floor:  # the leaves already seen may end inside this folder's first child
            async for leaf in self._walk(f"{folder}/{floor[0]}", depth + 1, floor[1:]):
                yield leaf
        after = floor[0] if floor else ""
        while names := await self._keys.children(folder, after=after, limit=_PAGE):
            for name in names:
                if depth == 4:
                    yield name
                    continue
                async for leaf in self._walk(f"{folder}/{name}", depth + 1, []):
                    yield leaf
            if len(names) < _PAGE:
                return
            after = names[-1]

    async def finish(self, mark: UnderreplicationMark, folder_version: int) -> bool:
        """Take back the mark of a ledger that has all its copies, its folder and the lock of this session, in one
        request.

        Return False if one of them is not as it was: then nothing was changed; use `unmark` and `unlock`. Callers
        `tidy` later.
        """
        if mark.ledger not in self._held:
            return False
        key = self.paths.mark(mark.ledger)
        gone = [
            Delete(key, mark.version),
            Delete(split(key)[0], folder_version),
            Delete(self.paths.lock(mark.ledger), self._held[mark.ledger]),
        ]
        try:
            await self._keys.multi(gone)
        except (VersionConflict, NoSuchKey, KeyNotEmpty):
            return False
        self._held.pop(mark.ledger, None)
        return True

    async def unmark(self, mark: UnderreplicationMark) -> bool:
        """Take back the mark of a ledger that has all its copies, unless it was marked again since. Needs the lock."""
        key = self.paths.mark(mark.ledger)
        try:
            await self._keys.delete(key, mark.version)
        except VersionConflict:
            return False
        except NoSuchKey:
            return True
        await self.tidy([mark.ledger])
        return True

    async def tidy(self, ledgers: Collection[LedgerId]) -> None:
        """Remove the folders above the marks that these ledgers had, if nothing is in them any more."""
        seen: set[str] = set()
        for ledger in ledgers:
            folder = split(self.paths.mark(ledger))[0]
            while folder != self.paths.marks and folder not in seen:
                seen.add(folder)
                try:
                    await self._keys.delete(folder, (await self._keys.get(folder)).version)
                except NoSuchKey:
                    pass
                except (KeyNotEmpty, VersionConflict):
                    break
                folder = split(folder)[0]

    # -- locks --------------------------------------------------------------------------------------------

    async def lock(self, ledger: LedgerId, folder_version: int | None = None) -> bool:
        """Keep others from working on the ledger until `unlock` or the end of this session; return False if somebody
        does.

        With the version of a candidate's folder it is False, too, if that is gone: somebody else was here. A lock that
        this session holds already counts as taken anew: a reply may have been lost. Callers keep their own list of what
        they work on.
        """
        key = self.paths.lock(ledger)
        create = Create(key, encode_holder(self._holder), ephemeral=True)
        try:
            if folder_version is None:
                await self._keys.create(create.key, create.value, ephemeral=True)
            else:
                folder = split(self.paths.mark(ledger))[0]
                await self._keys.multi([CheckVersion(folder, folder_version), create])
            self._held[ledger] = 0
            return True
        except (NoSuchKey, VersionConflict):
            return False
        except KeyExists:
            pass
        try:
            found = await self._keys.get(key)
        except NoSuchKey:
            return False  # it was given back this moment; the next round finds the ledger free
        if found.owned:
            self._held[ledger] = found.version
        return found.owned

    async def unlock(self, ledger: LedgerId) -> None:
        """Give the lock back. Idempotent; never takes the lock of another session back."""
        key = self.paths.lock(ledger)
        self._held.pop(ledger, None)
        with suppress(NoSuchKey):
            found = await self._keys.get(key)
            if found.owned:
                await self._keys.delete(key, found.version)

    def locks_lost(self) -> None:
        """Forget the locks, which ended with the session."""
        self._held.clear()

    async def locked(self, watch: Notify | None = None) -> list[LedgerId]:
        """Return the ledgers whose lock is held. The watch fires when a lock is taken or given back."""
        found: list[LedgerId] = []
        after = ""
        while names := await self._keys.children(self.paths.locks, after=after, limit=_PAGE, watch=watch):
            found += [ledger for name in names if (ledger := ledger_of(name)) is not None]
            after = names[-1]
            if len(names) < _PAGE:
                break
        return found

    async def lock_holder(self, ledger: LedgerId) -> str:
        """Return the name in the lock; empty if there is none."""
        try:
            return parse_holder((await self._keys.get(self.paths.lock(ledger))).value)
        except NoSuchKey:
            return ""

    # -- switches and dates -------------------------------------------------------------------------------

    async def enabled(self, watch: Notify | None = None) -> bool:
        """Return whether auditors and replicators may begin anything; the watch fires when that changes."""
        try:
            await self._keys.get(self.paths.disabled, watch)
        except NoSuchKey:
            return True
        return False

    async def enable(self, on: bool) -> bool:
        """Enable or disable autorecovery; return whether that was a change."""
        key = self.paths.disabled
        try:
            if on:
                await self._keys.delete(key, (await self._keys.get(key)).version)
            else:
                await self._keys.create(key, b"")
        except (NoSuchKey, KeyExists):
            return False
        return True

    async def read_delay(self, default_s: float, watch: Notify | None = None) -> Delay:
        """Return the delay of lost bookies: that of the tree, else `default_s` with version -1. Nothing is written."""
        try:
            found = await self._keys.get(self.paths.delay, watch)
        except NoSuchKey:
            return Delay(default_s, -1)
        return Delay(parse_delay(self.paths.delay, found.value), found.version)

    async def begin_delay(self, seconds: float) -> None:
        """Write the delay if there is none, as Apache's auditor does: an existing one wins."""
        with suppress(KeyExists):
            await self._keys.create(self.paths.delay, str(round(seconds)).encode())

    async def set_delay(self, seconds: int) -> None:
        """Set the delay for all auditors of the cluster. Writing the value that is there requests an audit now."""
        await overwrite(self._keys, self.paths.delay, str(seconds).encode())

    async def last_run_ms(self, check: str) -> int:
        """Return when a periodic check was last complete, in milliseconds; -1 if never."""
        try:
            return parse_date((await self._keys.get(self.paths.last_run(check))).value)
        except NoSuchKey:
            return -1

    async def set_last_run(self, check: str, now_ms: int) -> None:
        key, value = self.paths.last_run(check), encode_date(now_ms)
        with suppress(KeyExists, VersionConflict, NoSuchKey):  # another auditor has just written one as good
            try:
                await self._keys.set(key, value, (await self._keys.get(key)).version)
            except NoSuchKey:
                await self._keys.create(key, value)
