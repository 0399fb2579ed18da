"""`EtcdKeys`: the KeyStore contract on etcd.

A change is planned on what is known of the keys concerned (plan.py) and sent as one transaction that holds only if that
was right; if it was not, the keys are read as of one moment and it is planned again. Sessions are session.py, watches
session.py, requests client.py.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Sequence
from typing import Any

from buckram.core.backoff import STORE_CONFLICT, Delays
from buckram.errors import MetadataError, MetadataUnavailable, NoSuchKey
from buckram.metadata.etcd.client import Answer, EtcdClient, EtcdRefused, translate
from buckram.metadata.etcd.key_records import (
    ASSUMED,
    EtcdKeySpace,
    KnownState,
    Needs,
    Plan,
    Record,
    condition,
    make_plan,
    needs_of,
    read,
)
from buckram.metadata.etcd.session import EtcdSession, EtcdWatches
from buckram.metadata.tree.key_grammar import check_key, check_multi, check_op, check_parent
from buckram.seams import Notify
from buckram.types import Create, Delete, KeyOp, KeyValue, SetValue

_TRIES = 40
_READS = 100
"""Maximum reads in one transaction; etcd limits its operations."""
_MAX_SEEN = 4096
_PAGE = 200


class EtcdKeys:
    """A KeyStore: one session, begun with its first change, on the keys below `root` of an etcd cluster.

    `session_ttl_s` is how long etcd keeps the session of a silent process. An operation that is not answered within
    `timeout_s` fails with MetadataUnavailable. After a fork the child's copy refuses to work.
    """

    def __init__(
        self,
        hosts: tuple[str, ...],
        root: str,
        *,
        credentials: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        session_ttl_s: int = 10,
        timeout_s: float = 10.0,
    ) -> None:
        self.places = EtcdKeySpace(root)
        self.client = EtcdClient(hosts, credentials=credentials, tls=tls, timeout_s=timeout_s)
        self.session = EtcdSession(self.client, self.places, session_ttl_s, self._session_lost)
        self._watches = EtcdWatches(self.client, self.places)
        self._lost: list[Notify] = []
        self._seen: dict[str, Record] = {}
        """Records last read or written, without values: most versions that callers name are found here."""
        self._bound: dict[str, int] = {}
        """Keys last seen bound to a session of ours, with that session: in the next one they are not ours any more."""
        self._closing: asyncio.Future[None] | None = None

    async def prepare(self) -> None:
        """Check that etcd answers; there is nothing to set up. Raises MetadataUnavailable if no quorum answers."""
        await self._range(read(self.places.everything, limit=1, names_only=True), self.places.root)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._one(Create(key, bytes(value), ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        return await self._one(SetValue(key, bytes(value), version))

    async def delete(self, key: str, version: int) -> None:
        await self._one(Delete(key, version))

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        check_multi(ops)
        self.client.check_usable()
        if ops:
            await self._commit(list(ops))

    async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
        check_key(key)
        armed = None if watch is None else self._watches.begin("value", key, watch)
        try:
            place = self.places.of(key)
            answer = await self._range(read(place), key)
            found = [self.places.found(kv) for kv in answer.get("kvs", ())]
        except BaseException:
            if armed is not None:
                self._watches.drop(armed)
            raise
        if armed is not None:
            self._watches.settle(armed, int(answer["header"]["revision"]))
        if not found:
            self._note(key, None)
            raise NoSuchKey(key)
        one = found[0].record
        self._note(key, one)
        return KeyValue(one.value, one.version, one.lease != 0 and one.lease == self.session.lease)

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        check_parent(parent, limit)
        armed = None if watch is None else self._watches.begin("children", parent, watch)
        try:
            wanted = read(self.places.children(parent, after), limit=limit, names_only=True)
            answer = await self._range(wanted, parent)
            names = self._names(answer)
        except BaseException:
            if armed is not None:
                self._watches.drop(armed)
            raise
        if armed is not None:
            self._watches.settle(armed, int(answer["header"]["revision"]))
        return names

    async def children_with_values(
        self, parent: str, *, after: str = "", limit: int = 1000
    ) -> list[tuple[str, KeyValue]]:
        check_parent(parent, limit)
        wanted = read(self.places.children(parent, after), limit=min(limit, _PAGE))
        answer = await self._range(wanted, parent)
        found = [self.places.found(kv) for kv in answer.get("kvs", ())]
        lease = self.session.lease
        return [
            (key.rpartition("/")[2], KeyValue(one.value, one.version, one.lease != 0 and one.lease == lease))
            for key, one in found
        ]

    async def sync(self) -> None:
        """Do nothing: every read is answered by a quorum, so it sees what was complete before."""
        self.client.check_usable()

    async def lasting(self) -> list[tuple[str, int, bytes]]:
        """Return every key that is bound to no session, with version and value, as of one moment."""
        first, end = self.places.everything
        kept: list[tuple[str, int, bytes]] = []
        revision = 0
        while True:
            answer = await self._range(read((first, end), limit=_PAGE, revision=revision), self.places.root)
            revision = revision or int(answer["header"]["revision"])
            found = [self.places.found(kv) for kv in answer.get("kvs", ())]
            kept += [(key, one.version, one.value) for key, one in found if not one.lease]
            if not answer.get("more"):
                return sorted(kept)
            first = self.places.of(found[-1].key) + "\0"

    async def remove_all(self) -> int:
        """Remove every key of the cluster; return their number."""
        self.client.check_usable()
        wanted = read(self.places.everything)
        answer = await self.client.call_translated("kv/deleterange", wanted, self.places.root, repeat=False)
        self._seen.clear()
        return int(answer.get("deleted", 0))

    def on_session_lost(self, notify: Notify) -> None:
        self._lost.append(notify)

    async def close(self) -> None:
        if self.client.forked:
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
            try:
                await self._watches.close()
                await self.session.close()
            finally:
                self.client.close()
                self._closing.set_result(None)
        await asyncio.shield(self._closing)

    # Reading

    async def _range(self, wanted: dict[str, Any], what: str) -> Answer:
        await self._settle_doubt()
        return await self.client.call_translated("kv/range", wanted, what, repeat=True)

    async def _settle_doubt(self) -> None:
        """Renew the session's fence after a change whose answer was lost, so that later reads show for good whether it
        happened.
        """
        self.client.check_usable()
        if self.session.in_doubt:
            await self.session.ensure()

    def _names(self, answer: Answer) -> list[str]:
        return [self.places.name(kv) for kv in answer.get("kvs", ())]

    def _note(self, key: str, found: Record | None) -> None:
        for table in (self._seen, self._bound):
            table.pop(key, None)
            if len(table) >= _MAX_SEEN:
                del table[next(iter(table))]
        if found is not None:
            self._seen[key] = Record(b"", found.version, found.mod, found.lease)
            if found.lease and found.lease == self.session.lease:
                self._bound[key] = found.lease

    # Changing

    async def _one(self, op: KeyOp) -> int:
        check_op(op)
        return (await self._commit([op]))[0]

    async def _commit(self, ops: Sequence[KeyOp]) -> list[int]:
        """Commit the operations; return the versions of their keys after them."""
        needs = needs_of(ops)
        view = self._assumed(ops, needs)
        delays = Delays(STORE_CONFLICT, random)
        for attempt in range(_TRIES):
            await self._ready()
            lease, fence = self.session.lease, self.session.fence
            self._check_bound(ops, view, lease)
            if view is not None:
                try:
                    plan = make_plan(ops, view, self.places, lease)
                except MetadataError:
                    if view.revision:
                        raise
                    view = await self._look(needs, ops[0].key)
                    continue
                if await self._send(plan, ops, lease, fence):
                    return plan.versions
            if attempt > 2:
                await asyncio.sleep(delays.take())
            view = await self._look(needs, ops[0].key)
        raise MetadataUnavailable(f"{ops[0].key}: changed by others {_TRIES} times while it was tried; try again")

    async def _ready(self) -> None:
        self.client.check_usable()
        await self.session.ensure()

    def _assumed(self, ops: Sequence[KeyOp], needs: Needs) -> KnownState | None:
        """Return the state that the callers believe in, if it is enough to plan on: new keys are absent, parents are
        there, and versions are those that were read. None if not.
        """
        if len(needs.keys) > _READS:
            return None  # their conditions are taken together, which needs a moment to refer to
        view = KnownState(dict.fromkeys(needs.keys, ASSUMED), {key: [] for key in needs.folders})
        for op in ops:
            if isinstance(op, Create):
                view.keys[op.key] = None
                continue
            seen = self._seen.get(op.key)
            if seen is None or seen.version != op.version:
                return None
            view.keys[op.key] = seen
        return view

    def _check_bound(self, ops: Sequence[KeyOp], view: KnownState | None, lease: int) -> None:
        """Raise NoSuchKey for a key that was bound to a session of ours that is over, or is another session's
        by now.
        """
        for op in ops:
            bound = 0 if isinstance(op, Create) else self._bound.get(op.key, 0)
            if not bound:
                continue
            found = None if view is None else view.keys[op.key]
            if bound != lease or (found is not None and found.lease != bound):
                raise NoSuchKey(op.key)

    async def _look(self, needs: Needs, what: str) -> KnownState:
        """Read the state of these keys, as of one moment."""
        wanted: list[tuple[str, bool, dict[str, Any]]] = []
        wanted += [(key, False, read(self.places.of(key))) for key in needs.keys]
        wanted += [
            (key, True, read(self.places.children(key), limit=many, names_only=True))
            for key, many in needs.folders.items()
        ]
        view = KnownState()
        for start in range(0, len(wanted), _READS):
            part = wanted[start : start + _READS]
            reads = [{"request_range": {**one, "revision": str(view.revision)}} for _, _, one in part]
            answer = await self.client.call_translated("kv/txn", {"success": reads}, what, repeat=True)
            view.revision = view.revision or int(answer["header"]["revision"])
            for (key, below, _), response in zip(part, answer["responses"], strict=True):
                if below:
                    view.children[key] = self._names(response["response_range"])
                else:
                    found = [self.places.found(kv).record for kv in response["response_range"].get("kvs", ())]
                    view.keys[key] = found[0] if found else None
        return view

    async def _send(self, plan: Plan, ops: Sequence[KeyOp], lease: int, fence: int) -> bool:
        """Carry a plan out; return False if the state has changed since it was made."""
        place = self.places.session(lease)
        body = {
            "compare": [condition(place, "MOD", "EQUAL", fence), *plan.conditions],
            "success": plan.requests,
            "failure": [{"request_range": read(place)}],
        }
        what = ops[0].key if len(ops) == 1 else f"multi of {len(ops)} operations, from {ops[0].key} on"
        try:
            answer = await self.client.call("kv/txn", body, what, repeat=False)
        except EtcdRefused as refused:
            if refused.no_lease:
                self.session.end(lease)
                return False
            if refused.transient:
                self.session.doubt(fence)
            raise translate(refused, what, self.client.hosts, sum(len(one.key) for one in ops)) from None
        except BaseException:  # also on cancellation: the change may still happen
            self.session.doubt(fence)
            raise
        if not answer.get("succeeded"):
            kvs = answer["responses"][0]["response_range"].get("kvs", [])
            self.session.seen(lease, fence, int(kvs[0]["mod_revision"]) if kvs else 0)
            return False
        revision = int(answer["header"]["revision"])
        for key, one in plan.written.items():
            self._note(key, one and Record(b"", one.version, revision, one.lease))
        return True

    def _session_lost(self) -> None:
        for notify in list(self._lost):
            self._watches.notify(notify)
        self._watches.fire_all()
