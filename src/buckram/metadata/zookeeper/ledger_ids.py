"""New ledger ids from sequence nodes, as Apache's managers draw them.

A number is only a proposal: creating the ledger's node decides. The nodes that gave one are deleted by whoever
takes them with `take_used`. Numbers above 31 bits have a high half, the largest HOB- node, once the short ones ran out.
"""

from __future__ import annotations

import asyncio
from collections import deque

from buckram.errors import (
    ClusterNotInitialised,
    KeyExists,
    LedgerIdsExhausted,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
)
from buckram.metadata.zookeeper.ledger_managers import ID_PREFIX, SHORT_LIMIT, Manager
from buckram.metadata.zookeeper.session import ZkSession
from buckram.types import LedgerId

HIGH_PREFIX = "HOB-"
_HIGH_KEPT = 3
_TRIES = 20
_MAX_TIDIED = 500
_MAX_DRAWN = 10_000
"""Maximum number of ids that are drawn and dropped to move the counter on."""


class LedgerIds:
    """Draws ids for one session. `limit`: the first number that a counter must not give."""

    def __init__(self, session: ZkSession, root: str, uri: str, limit: int = SHORT_LIMIT) -> None:
        self._session, self._root, self._uri, self._limit = session, root, uri, limit
        self._long: bool | None = None
        self._high: int | None = None
        self._used: deque[str] = deque()
        self._unknown: dict[str, None] = {}
        """Folders in which a node may have been made for this session whose name is unknown."""

    @property
    def pending(self) -> int:
        """Return how many sequence nodes that gave ids still exist."""
        return len(self._used)

    def take_used(self) -> str | None:
        """Take the oldest sequence node that gave an id; the caller deletes it."""
        return self._used.popleft() if self._used else None

    def take_all_used(self) -> list[str]:
        used = list(self._used)
        self._used.clear()
        return used

    def give_back(self, node: str) -> None:
        """Give back a node that may not be deleted yet."""
        self._used.append(node)

    async def draw(self, manager: Manager) -> LedgerId:
        """Return a number that no draw gave before. Raises LedgerIdsExhausted when the manager has none left."""
        if self._unknown:
            await self._tidy()
        folder = f"{self._root}/{manager.id_folder}" if manager.id_folder else self._root
        if manager.short_ids:
            low = await self._short(folder)
            if low is None:
                raise LedgerIdsExhausted(
                    f"{folder}: the counter has passed {self._limit - 1}, the {manager.name} ledger manager has no ids "
                    "left: choose ids yourself, or make a new cluster with the hierarchical manager"
                )
            return low
        if self._long is None:
            self._long = await self._session.exists(self._high_root) is not None
        if not self._long:
            low = await self._short(folder)
            if low is not None:
                return low
            await self._make(self._high_root)
            self._long = True
        return await self._draw_long()

    async def next(self, manager: Manager) -> LedgerId:
        """Return the least number that the next draw can give, without drawing."""
        folder = f"{self._root}/{manager.id_folder}" if manager.id_folder else self._root
        if not manager.short_ids:
            try:
                highs = _numbers(await self._session.children(self._high_root), HIGH_PREFIX, self._limit)
            except NoSuchKey:
                highs = []
            if highs:
                high = max(highs)
                return high << 32 | await self._given(f"{self._high_root}/{HIGH_PREFIX}{high:010d}")
        return await self._given(folder)

    async def _given(self, folder: str) -> int:
        """Return how many children a folder ever had, which is the next number of a sequence in it."""
        stat = await self._session.exists(folder)
        return 0 if stat is None else ((stat.cversion & 0xFFFF_FFFF) + stat.children) // 2

    async def move_beyond(self, above: LedgerId, manager: Manager) -> None:
        """Have no id up to this one drawn any more.

        The counter of short ids goes on by one for each node, so a long way is cut short: ids with a high half follow
        it.
        """
        missing = above + 1 - await self.next(manager)
        if missing <= 0:
            return
        if missing > _MAX_DRAWN and not manager.short_ids:
            await self._make(self._high_root)
            await self._make(f"{self._high_root}/{HIGH_PREFIX}{self._checked((above >> 32) + 1):010d}")
            self._long, self._high = True, None
            return
        if missing > _MAX_DRAWN:
            raise LedgerIdsExhausted(
                f"{self._root}: ids up to {above} are {missing} away, and the {manager.name} ledger manager counts "
                "one by one: choose ids yourself, or make a new cluster with the hierarchical manager"
            )
        for _ in range(missing):
            if await self.draw(manager) > above:
                break

    @property
    def _high_root(self) -> str:
        return f"{self._root}/idgen-long"

    async def _draw_long(self) -> LedgerId:
        for _ in range(_TRIES):
            high = self._high if self._high is not None else await self._find_high()
            folder = f"{self._high_root}/{HIGH_PREFIX}{high:010d}"
            try:
                low = await self._sequence(folder)
            except NoSuchKey:
                self._high = None  # another process tidied it away: there is a higher one
                continue
            if low is not None:
                self._high = high
                return high << 32 | low
            await self._make(f"{self._high_root}/{HIGH_PREFIX}{self._checked(high + 1):010d}")
            self._high = None
        raise LedgerIdsExhausted(f"{self._high_root}: no counter below it gives ids, after {_TRIES} tries; look at it")

    async def _find_high(self) -> int:
        """Return the largest high half, making the first if there is none. All but the largest few are tidied away."""
        numbers = sorted(_numbers(await self._session.children(self._high_root), HIGH_PREFIX, self._limit))
        for number in numbers[:-_HIGH_KEPT]:
            try:
                await self._session.delete(f"{self._high_root}/{HIGH_PREFIX}{number:010d}", 0)
            except MetadataError:
                continue  # in use or gone: tidying is not needed for anything
        if numbers:
            return numbers[-1]
        await self._make(f"{self._high_root}/{HIGH_PREFIX}{1:010d}")
        return 1

    def _checked(self, high: int) -> int:
        if high >= self._limit:
            raise LedgerIdsExhausted(f"{self._high_root}: all ids are used up; choose ids yourself")
        return high

    async def _make(self, path: str) -> None:
        # Open to everybody whatever the session's ACL is: every peer expects it so.
        try:
            await self._session.create(path, world_open=True)
        except KeyExists:
            return

    async def _short(self, folder: str) -> int | None:
        """Return the next number of the 31-bit counter; None when it has run over."""
        try:
            return await self._sequence(folder)
        except NoSuchKey:
            pass
        try:
            await self._session.create(folder)
        except KeyExists:
            pass
        except NoSuchKey:
            raise ClusterNotInitialised(self._uri) from None
        return await self._sequence(folder)

    async def _sequence(self, folder: str) -> int | None:
        prefix = f"{folder}/{ID_PREFIX}"
        try:
            path, _ = await self._session.create(prefix, ephemeral=True, sequence=True)
        except (MetadataUnavailable, asyncio.CancelledError):
            self._unknown[folder] = None
            raise
        self._used.append(path)
        number = path[len(prefix) :]  # eleven characters when the counter has run over: -2147483648
        return int(number) if number.isdigit() and int(number) < self._limit else None

    async def _tidy(self) -> None:
        """Find the nodes of this session that no draw knows of, to be deleted with the others.

        One that belongs to a draw under way may be among them: its number counts as well without it.
        """
        folders, self._unknown = list(self._unknown), {}
        for folder in folders:
            try:
                names = await self._session.children(folder)
                paths = [f"{folder}/{name}" for name in names if name.startswith(ID_PREFIX)][-_MAX_TIDIED:]
                stats = await asyncio.gather(*map(self._session.exists, paths))
            except MetadataError:
                continue  # they go with the session
            for path, stat in zip(paths, stats, strict=True):
                if stat is not None and stat.owner == self._session.session_id and path not in self._used:
                    self._used.append(path)


def _numbers(names: list[str], prefix: str, limit: int) -> list[int]:
    found = []
    for name in names:
        digits = name.removeprefix(prefix)
        if digits != name and digits.isascii() and digits.isdigit() and int(digits[:20]) < limit:
            found.append(int(digits))
    return found
