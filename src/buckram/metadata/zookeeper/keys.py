"""`ZooKeeperKeys`: the KeyStore contract on any ZkSession.

What ZooKeeper does otherwise is made even here: parents that must exist, listings without pages, and watches that a
failed read does not set. Which keys there are is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from buckram.errors import KeyExists, MetadataUnavailable, NoSuchKey
from buckram.metadata.tree.key_grammar import check_key, check_multi, check_op, check_parent, split
from buckram.metadata.zookeeper.session import ZkSession
from buckram.seams import MAX_PAGE_BYTES, Notify
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, SetValue

_LISTING_S = 10.0
"""Seconds for which the rest of a listing may be asked for before it is read anew."""
_MAX_LISTINGS = 8
_MULTI_TRIES = 20
_MAX_OWNED = 1000
_READS_AT_ONCE = 128


class ZooKeeperKeys:
    """A KeyStore. It owns the session: closing it ends the session.

    `shared`: a node that holds keys of clusters with other credentials, too, so it is made open to everybody.
    """

    def __init__(self, session: ZkSession, *, shared: str = "") -> None:
        self.session = session
        self._to_share = shared
        self._loop = asyncio.get_running_loop()
        self._listings: dict[tuple[str, str], tuple[float, list[str]]] = {}
        self._owned: dict[str, int] = {}
        """Keys last seen bound to a session of ours, with that session: in the next one they are not ours any more."""

    async def prepare(self) -> None:
        """Check that a server answers; there is nothing to set up. Raises MetadataUnavailable if none does."""
        await self.session.exists("/")

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        check_op(Create(key, value, ephemeral))
        self._forget_listings([key])
        await self._share([key])
        before = self.session.session_id
        _, version = await self.session.create(key, bytes(value), ephemeral=ephemeral, parents=True)
        self._note_made([key] if ephemeral else [], before)
        return version

    async def create_numbered(self, prefix: str, value: bytes) -> str:
        """Make an ephemeral sequential node, as metadata/records/auditor_election wants it."""
        check_op(Create(prefix, value, True))
        self._forget_listings([prefix])
        made, _ = await self.session.create(prefix, bytes(value), ephemeral=True, sequence=True)
        return made

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        check_key(key)
        try:
            value, stat = await self.session.get(key, watch)
        except NoSuchKey:
            if watch is None or await self.session.exists(key, watch) is None:
                raise
            # It appeared in between. The watch is set; should the key vanish again, it has fired.
            value, stat = await self.session.get(key)
        owned = stat.owner != 0 and stat.owner == self.session.session_id
        self._note_owner(key, stat.owner if owned else 0)
        return KeyValue(value, stat.version, owned)

    async def set(self, key: str, value: bytes, version: int) -> int:
        check_op(SetValue(key, value, version))
        return await self.session.set(key, bytes(value), version, session=self._owned.get(key, 0))

    async def delete(self, key: str, version: int) -> None:
        check_op(Delete(key, version))
        self._forget_listings([key])
        await self.session.delete(key, version, session=self._owned.get(key, 0))
        self._owned.pop(key, None)

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        check_parent(parent, limit)
        names = None if watch is not None else self._rest_of_listing(parent, after)
        if names is None:
            names = await self._list(parent, watch)
        start = bisect_right(names, after)
        page = names[start : start + limit]
        if start + limit < len(names):
            self._keep_listing(parent, page[-1], names)
        return page

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        """List children, then read each value, many at the same time."""
        check_parent(parent, limit)
        above = "" if parent == "/" else parent
        names = self._rest_of_listing(parent, after) or await self._list(parent, None)
        found: list[tuple[str, KeyValue]] = []
        at, size = bisect_right(names, after), 0
        while at < len(names) and len(found) < limit and size < MAX_PAGE_BYTES:
            part = names[at : at + min(_READS_AT_ONCE, limit - len(found))]
            at += len(part)
            values = await self.get_all([f"{above}/{name}" for name in part])
            found += [(name, value) for name, value in zip(part, values, strict=True) if value is not None]
            size += sum(len(value.value) for value in values if value is not None)
        if found and at < len(names):
            self._keep_listing(parent, found[-1][0], names)
        return found

    async def get_all(self, keys: Sequence[str]) -> list[KeyValue | None]:
        """Return the value of each of these keys, all read at the same time; None for those that are absent."""

        async def get(key: str) -> KeyValue | None:
            try:
                return await self.get(key)
            except NoSuchKey:
                return None

        found: list[KeyValue | None] = []
        for answer in await asyncio.gather(*map(get, keys), return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        check_multi(ops)
        self._forget_listings(op.key for op in ops if isinstance(op, Create | Delete))
        await self._share(op.key for op in ops if isinstance(op, Create))
        ops = [_with_bytes(op) for op in ops]
        missing: list[str] = []
        changed = [op.key for op in ops if isinstance(op, SetValue | Delete)]
        bound = next((owner for key in changed if (owner := self._owned.get(key, 0))), 0)
        for _ in range(_MULTI_TRIES):
            before = self.session.session_id
            try:
                await self.session.multi(_with_parents(ops, missing), session=bound)
                self._note_made([op.key for op in ops if isinstance(op, Create) and op.ephemeral], before)
                for op in ops:
                    if isinstance(op, Delete):
                        self._owned.pop(op.key, None)
                return
            except (NoSuchKey, KeyExists) as error:
                # Parents come into the multi, so that they appear with it or not at all. If they are as they were
                # thought to be, it is the caller's own operation that failed, or a parent was made by somebody else
                # between the multi and the look.
                if isinstance(error, KeyExists) and error.key not in missing:
                    raise
                found = await self._missing_parents(ops)
                if found == missing and (isinstance(error, KeyExists) or _is_own(error.key, ops)):
                    raise
                missing = found
        raise MetadataUnavailable(
            f"multi from {ops[0].key} on: its parents are created and removed too fast; try again"
        )

    async def sync(self) -> None:
        """Have the server of this session catch up with the leader before it answers later requests."""
        self._listings.clear()
        await self.session.sync("/")

    def on_session_lost(self, notify: Notify) -> None:
        self.session.on_session_lost(notify)

    async def close(self) -> None:
        await self.session.close()

    async def _share(self, keys: Iterable[str]) -> None:
        shared = self._to_share
        if shared and any(key.startswith(f"{shared}/") for key in keys):
            if await self.session.exists(shared) is None:
                with contextlib.suppress(KeyExists):
                    await self.session.create(shared, world_open=True)
            self._to_share = ""

    async def _list(self, parent: str, watch: Notify | None) -> list[str]:
        try:
            return await self.session.children(parent, watch)
        except NoSuchKey:
            if watch is None or await self.session.exists(parent, watch) is None:
                return []
        try:
            return await self.session.children(parent, watch)
        except NoSuchKey:
            return []  # it came and went, so the watch has fired

    def _note_made(self, keys: Iterable[str], session: int) -> None:
        """Note that ephemeral keys were made, in that session if it still is ours; else they are gone."""
        for key in keys:
            self._note_owner(key, session if session == self.session.session_id else 0)

    def _note_owner(self, key: str, session: int) -> None:
        self._owned.pop(key, None)
        if session:
            self._owned[key] = session
            if len(self._owned) > _MAX_OWNED:
                del self._owned[next(iter(self._owned))]

    def _keep_listing(self, parent: str, last: str, names: list[str]) -> None:
        self._listings[parent, last] = (self._loop.time() + _LISTING_S, names)
        while len(self._listings) > _MAX_LISTINGS:
            del self._listings[next(iter(self._listings))]

    def _rest_of_listing(self, parent: str, after: str) -> list[str] | None:
        """Return the names that the page before was cut from.

        Every listing reads its first page, and each is kept once.
        """
        until, names = self._listings.pop((parent, after), (0.0, None))
        return names if after and until > self._loop.time() else None

    def _forget_listings(self, keys: Iterable[str]) -> None:
        if self._listings:
            changed = {split(key)[0]: None for key in keys}
            for place in [place for place in self._listings if place[0] in changed]:
                del self._listings[place]

    async def _missing_parents(self, ops: Sequence[KeyOp]) -> list[str]:
        """Return the parents of created keys that do not exist now, each before what is below it."""
        known: dict[str, bool] = {"/": True}
        for op in ops:
            chain: list[str] = []
            parent = split(op.key)[0]
            while isinstance(op, Create) and parent not in known:
                chain.append(parent)
                known[parent] = await self.session.exists(parent) is not None
                if known[parent]:
                    break
                parent = split(parent)[0]
        return sorted(key for key, exists in known.items() if not exists)


def _is_own(key: str, ops: Sequence[KeyOp]) -> bool:
    """Return whether the caller named the key as an existing one; else it is a parent of what is created."""
    return any(op.key == key for op in ops if not isinstance(op, Create))


def _with_bytes(op: KeyOp) -> KeyOp:
    match op:
        case Create():
            return Create(op.key, bytes(op.value), op.ephemeral)
        case SetValue():
            return SetValue(op.key, bytes(op.value), op.version)
        case Delete() | CheckVersion():
            return op


def _with_parents(ops: Sequence[KeyOp], missing: Sequence[str]) -> list[KeyOp]:
    """Return the operations with each missing parent made where it is first needed."""
    made: dict[str, None] = {}
    whole: list[KeyOp] = []
    for op in ops:
        if isinstance(op, Create):
            above = [key for key in missing if op.key.startswith(key + "/") and key not in made]
            whole += [Create(key, b"") for key in above]
            made |= dict.fromkeys(above)
            made[op.key] = None
        whole.append(op)
    return whole
