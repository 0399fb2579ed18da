"""`ApacheTree`: a cluster's ledgers in the tree of whichever manager its LAYOUT names.

Finds the manager, makes and deletes records with their folders, lists in order. Paths are paths, ids ids; what records
hold is metadata/tree/store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from buckram.errors import (
    ClusterNotInitialised,
    KeyExists,
    LedgerIdUsed,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
    WrongCluster,
)
from buckram.metadata.tree.key_grammar import check_op, split
from buckram.metadata.tree.ledger_tree import (
    HIGHEST_COUNTED,
    Fresh,
    Intervals,
    is_used,
    parse_used,
    used_key,
    with_used,
)
from buckram.metadata.tree.removals import Removals
from buckram.metadata.zookeeper.keys import ZooKeeperKeys
from buckram.metadata.zookeeper.ledger_ids import LedgerIds
from buckram.metadata.zookeeper.ledger_managers import (
    HEALTH_CHECK_SWITCH,
    RACK_MAP,
    ApacheLayout,
    Folder,
    Manager,
    Walk,
    choose_manager,
    own_root,
    serialise_layout,
)
from buckram.metadata.zookeeper.session import ANY_VERSION, ZkSession
from buckram.types import Create, Delete, KeyOp, KeyValue, LedgerId, SetValue

_AT_ONCE = 32
"""Maximum number of folders that are read at the same time."""
_RECORDS_AT_ONCE = 128
_MAX_USED = 100
_TRIES = 64
_WALK_S = 10.0
"""Seconds for which a listing may pause between two pages before folders are read anew."""


class ApacheTree:
    """A LedgerTree. `wanted` is the manager that the URI asks for, None to take the existing one."""

    def __init__(self, session: ZkSession, root: str, uri: str, wanted: Manager | None, keys: ZooKeeperKeys) -> None:
        self._keys, self._removals = keys, Removals(keys, own_root(root))
        self._chosen: dict[str, Intervals] = {}
        self._session, self._root, self._uri, self._wanted = session, root, uri, wanted
        self._manager: Manager | None = None
        self._instance: str | None = None
        self._ids = LedgerIds(session, root, uri)
        self._paused: tuple[LedgerId, Walk, float] | None = None
        self._began = 0

    @property
    def layout(self) -> ApacheLayout:
        """Return the cluster's layout; until its first use the manager is the default one."""
        own = own_root(self._root)
        return ApacheLayout(self._root, own) if self._manager is None else ApacheLayout(self._root, own, self._manager)

    async def manager(self) -> Manager:
        """Return the cluster's ledger manager. Raises ClusterNotInitialised if there is no cluster."""
        if self._manager is not None:
            return self._manager
        record = await self._layout_record()
        if record is None and await self._session.exists(f"{self._root}/INSTANCEID") is None:
            raise ClusterNotInitialised(self._uri)
        manager = choose_manager(self._layout_node, record, self._wanted)
        if record is not None:
            self._manager = manager  # not kept while LAYOUT is missing: a peer may make it, with another manager
        return manager

    async def instance_id(self) -> str:
        """Return the cluster's UUID, "" for an old cluster that has none.

        Raises WrongCluster if it was another one before.
        """
        try:
            found = (await self._session.get(f"{self._root}/INSTANCEID"))[0].decode("utf-8", "backslashreplace")
        except NoSuchKey:
            if await self._layout_record() is None:
                raise ClusterNotInitialised(self._uri) from None
            found = ""
        if self._instance is None:
            self._instance = found
        elif self._instance != found:
            raise WrongCluster(
                f"{self._root}/INSTANCEID is {found!r}, it was {self._instance!r} when this process began: the cluster "
                "was formatted or ZooKeeper's data replaced; nothing was changed. Restart this process with the "
                "metadata it belongs to"
            )
        return found

    @property
    def _layout_node(self) -> str:
        return f"{self._root}/LAYOUT"

    async def _layout_record(self) -> bytes | None:
        try:
            return (await self._session.get(self._layout_node))[0]
        except NoSuchKey:
            return None

    async def _pinned(self) -> Manager:
        """Return the manager, with LAYOUT made if it is missing: after the first ledger no other one may be chosen."""
        manager = await self.manager()
        if self._manager is None:
            with contextlib.suppress(KeyExists):
                await self._session.create(self._layout_node, serialise_layout(manager))
            return await self.manager()
        return manager

    # Records

    async def key(self, ledger_id: LedgerId) -> str:
        return f"{self._root}/{(await self.manager()).path(ledger_id)}"

    async def allocate(self) -> LedgerId:
        ledger_id = await self._ids.draw(await self._pinned())
        while await self._was_chosen(ledger_id):
            ledger_id = await self._ids.draw(await self._pinned())
        if self._ids.pending > _MAX_USED:  # ids that no ledger was made with
            await asyncio.gather(*map(self._forget, self._ids.take_all_used()))
        return ledger_id

    async def next_id(self) -> LedgerId:
        return await self._ids.next(await self.manager())

    def forget_ids(self) -> None:
        """Do nothing: no ids are taken ahead."""

    async def raise_next_id(self, above: LedgerId) -> None:
        if above >= HIGHEST_COUNTED:
            with contextlib.suppress(LedgerIdUsed):
                await self._session.multi([await self._marking(above)])
            return
        await self._ids.move_beyond(above, await self._pinned())

    async def create(self, ledger_id: LedgerId, record: bytes, *, chosen: bool, fresh: Fresh | None = None) -> int:
        """Make the record and, in the same request, delete the node that gave an id, so that this needs no wait."""
        manager = await self._pinned()
        key = f"{self._root}/{manager.path(ledger_id)}"
        check_op(Create(key, record))
        self._forget_walk()
        if chosen:
            await self._session.sync(self._root)
            if ledger_id < await self._ids.next(manager):
                raise LedgerIdUsed(ledger_id)
        used = self._ids.take_used()
        marks: list[KeyOp] | None = None
        for _ in range(_TRIES):
            try:
                if marks is None:
                    marks = await self._conditions(ledger_id, chosen, fresh)
                return await self._create(key, record, used, marks)
            except VersionConflict as error:
                if fresh and error.key == fresh[0].key:
                    raise
                marks = None  # another process chose or deleted an id in the same bucket
            except NoSuchKey as error:
                if fresh and error.key == fresh[0].key:
                    raise
                if error.key == used:
                    used = None  # it went with the session that made it
                else:
                    await self._make_folder(error.key)
            except (KeyExists, LedgerIdUsed):
                if used is not None:
                    await self._forget(used)
                raise
            except (MetadataError, asyncio.CancelledError):
                if used is not None:
                    self._ids.give_back(used)
                raise
        raise MetadataUnavailable(f"{key}: its folder vanishes as fast as it is made; try again")

    async def _create(self, key: str, record: bytes, used: str | None, marks: Sequence[KeyOp]) -> int:
        if used is None and not marks:
            return (await self._session.create(key, record))[1]
        tidied = [] if used is None else [Delete(used, ANY_VERSION)]
        await self._session.multi([Create(key, record), *marks, *tidied])
        return 0

    async def _conditions(self, ledger_id: LedgerId, chosen: bool, fresh: Fresh | None) -> list[KeyOp]:
        """Return the operations that a creation needs so that an id is one ledger's for ever.

        Raises LedgerIdUsed.
        """
        if fresh is not None and not chosen:
            return list(fresh)
        never = await self._removals.never_deleted(ledger_id)
        while isinstance(never, Create):  # its folder may be missing, too
            with contextlib.suppress(KeyExists):
                await self._keys.create(never.key, never.value)
            never = await self._removals.never_deleted(ledger_id)
        return [never, await self._marking(ledger_id)] if chosen else [never]

    async def remove(self, ledger_id: LedgerId, version: int) -> None:
        key = await self.key(ledger_id)
        await self._removals.remove(ledger_id, key, version)
        await self.removed(key)

    async def remove_with(self, ops: Sequence[KeyOp], ledgers: Sequence[LedgerId]) -> None:
        await self._removals.with_record(ops, ledgers)
        for one in ledgers:
            await self.removed(await self.key(one))

    async def _marking(self, ledger_id: LedgerId) -> SetValue:
        """Return the operation that records the id as chosen, making its key if necessary.

        Raises LedgerIdUsed if it is recorded already.
        """
        key = used_key(own_root(self._root), ledger_id)
        try:
            found = await self._keys.get(key)
        except NoSuchKey:
            with contextlib.suppress(KeyExists):
                await self._keys.create(key, b"")
            found = await self._keys.get(key)
        intervals = parse_used(key, found.value)
        if is_used(intervals, ledger_id):
            raise LedgerIdUsed(ledger_id)
        return SetValue(key, with_used(intervals, ledger_id), found.version)

    def _forget_chosen(self, key: str) -> None:
        self._chosen.pop(key, None)

    async def _was_chosen(self, ledger_id: LedgerId) -> bool:
        """Return whether that id was chosen by hand before.

        Read once for all ids of a bucket, until something changes.
        """
        key = used_key(own_root(self._root), ledger_id)
        known = self._chosen.get(key)
        if known is None:
            self._chosen.clear()
            await self._session.sync(self._root)
            try:
                known = parse_used(key, (await self._keys.get(key, partial(self._forget_chosen, key))).value)
            except NoSuchKey:
                known = []
            self._chosen[key] = known
        return is_used(known, ledger_id)

    async def _make_folder(self, path: str) -> None:
        """Make a folder of the tree with those above it. Never the root: it is missing because the cluster is gone."""
        if not path.startswith(f"{self._root}/"):
            raise ClusterNotInitialised(self._uri)
        for _ in range(_TRIES):
            try:
                await self._session.create(path)
            except KeyExists:
                return
            except NoSuchKey as error:
                await self._make_folder(error.key)
            else:
                return

    async def _forget(self, path: str) -> None:
        try:
            await self._session.delete(path, ANY_VERSION)
        except MetadataError:
            return  # it goes with the session

    async def removed(self, key: str) -> None:
        """Remove the folders that are empty now, upwards, as far as possible: they are made again when needed."""
        self._forget_walk()
        folder = split(key)[0]
        try:
            # Only for a ledger: the parent of any other key may be a record without children.
            if not (await self.manager()).removes_parents or self.layout.ledger_of(key) is None:
                return
            while folder != self._root:
                stat = await self._session.exists(folder)
                if stat is None or stat.children:
                    return
                await self._session.delete(folder, ANY_VERSION)
                folder = split(folder)[0]
        except MetadataError:
            return

    # Looking after the cluster

    async def manager_name(self) -> str:
        return (await self.manager()).name

    async def strays(self) -> list[str]:
        """Return nodes below the root that are neither Apache's nor ledgers, folders without ledgers included."""
        walk = Walk(await self.manager())
        while not walk.finished:
            await self._read(walk, _AT_ONCE)
            walk.take(walk.ready())
        return [f"{self._root}/{path}" for path in walk.strays if path not in (HEALTH_CHECK_SWITCH, RACK_MAP)]

    # Listing

    async def page(self, after: LedgerId, limit: int) -> list[LedgerId]:
        """Return a page; the next one goes on with the folders that were read for this one, if it is asked for soon."""
        walk = self._resumed(after)
        if walk is None:
            # A listing must never go on with folders read before it began: collection relies on that.
            self._forget_walk()
            # Folders that are not there are empty, so an empty ZooKeeper would look like a cluster without ledgers.
            await self.instance_id()
            walk = Walk(await self.manager(), after)
        began, width = self._began, 1
        while walk.ready() < limit and not walk.finished:
            await self._read(walk, width)
            width = min(2 * width, _AT_ONCE)
        page = walk.take(limit)
        if page and began == self._began and (walk.ready() or not walk.finished):
            self._paused = (page[-1], walk, asyncio.get_running_loop().time())
        return page

    async def records(self, after: LedgerId, limit: int) -> list[tuple[LedgerId, KeyValue]]:
        while page := await self.page(after, limit):
            found: list[tuple[LedgerId, KeyValue]] = []
            for start in range(0, len(page), _RECORDS_AT_ONCE):
                part = page[start : start + _RECORDS_AT_ONCE]
                keys = [await self.key(ledger) for ledger in part]
                values = await self._keys.get_all(keys)
                found += [(ledger, value) for ledger, value in zip(part, values, strict=True) if value is not None]
            if found:
                return found
            after = page[-1]  # all of them were deleted meanwhile
        return []

    def _forget_walk(self) -> None:
        """Forget the walk that pauses; those in progress are not kept when they pause."""
        self._began += 1
        self._paused = None

    def _resumed(self, after: LedgerId) -> Walk | None:
        paused = self._paused
        if paused is None or paused[0] != after or asyncio.get_running_loop().time() - paused[2] > _WALK_S:
            return None
        self._paused = None
        return paused[1]

    async def _read(self, walk: Walk, width: int) -> None:
        folders = walk.next_folders(width)
        names: list[list[str]] = []
        for answer in await asyncio.gather(*map(self._children, folders), return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            names.append(answer)
        walk.read(names)

    async def _children(self, folder: Folder) -> list[str]:
        """Return the names in a folder as of now; empty if it has vanished."""
        path = f"{self._root}/{folder.path}" if folder.path else self._root
        await self._session.sync(path)
        try:
            return await self._session.children(path)
        except NoSuchKey:
            if not folder.path:
                raise ClusterNotInitialised(self._uri) from None
            return []
