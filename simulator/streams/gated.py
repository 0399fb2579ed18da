"""What a hostile tenant asks of a bookie, which holds it to its grants: each must be refused, or be harmless.

Its requests pass the session of a bookie (`bookie/service/metadata/key_session.py`) on the life's own store; the rules
of the honest streams show what came of them. Not here: what servers do for a stream whose metadata went past all this
(`hostile.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from buckram.bookie.service.metadata.key_session import KeySession
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.core.security.acl import Acl
from buckram.core.security.key_access import KeyRules
from buckram.core.security.ledger_claims import ids_of_head
from buckram.core.security.namespace_rules import ClusterKeys, Known, NamespaceRules
from buckram.core.security.principal import Principal
from buckram.core.streams.metadata.head import Head, decode_head, encode_head
from buckram.core.streams.names import StreamName, owner_mark, stream_name
from buckram.errors import BuckramError, MetadataUnavailable, NoSuchKey
from buckram.metadata.service.packets import KeyRequest, RequestKind
from buckram.metadata.tree.store import TreeStore
from buckram.streams.shared.layout import Layout
from buckram.types import Create, Delete, KeyOp, LedgerId, SetValue
from simulator.engine.checkers.report import Report
from simulator.streams.facts import HOSTILE, Facts

TENANT = Principal(f"token:{HOSTILE}")
GRANTS = Acl().granting(TENANT.name, HOSTILE, ("read", "append", "create", "delete"))
Other = tuple[str, str, Head, int]
"""The key of a head, the stream's name, the head and its version."""
ABSURD = (b'{"offset": 1e999}', b'{"offset": 99999999999999999999999}', b"[" * 5000, b"\xff", b"null", b"")
"""Values of keys that are bounded in size and number alone."""
MOVES = ("removal", "uid", "deletion", "numbers", "late key", "links")
_FRAME = 1 << 20


class _Peer:
    """The connection, as far as a session of keys uses it."""

    principal = TENANT

    def send(self, data: bytes) -> None:
        """Drop an event: nothing is watched."""


class _Bookie:
    """What the sessions of a bookie share, and who may do what (Shared, KeyAccess)."""

    creations = noting = None

    def __init__(self, store: TreeStore) -> None:
        self.store = store

    def watch(self, place: tuple[RequestKind, str], session: KeySession) -> Any:
        raise AssertionError("nothing is watched")

    def forget(self, session: KeySession) -> None:
        """Do nothing: nothing is watched."""

    def rules(self, principal: Principal) -> KeyRules:
        store = self.store
        places = ClusterKeys(store.root, store.own, lambda key: store.layout.ledger_of(key) is not None)
        return NamespaceRules(places, lambda: GRANTS, principal, Known())

    async def open_store(self) -> TreeStore:
        raise AssertionError("no session key is made")


class Gated:
    """The tenant's connection to a bookie. `bait` is its own stream."""

    def __init__(self, store: TreeStore, bait: StreamName, facts: Facts, report: Report, rng: random.Random) -> None:
        self.store, self.layout, self.bait = store, Layout(store), bait
        self._facts, self._report, self._rng = facts, report, rng
        bookie = _Bookie(store)
        self._session = KeySession(_Peer(), bookie, bookie.open_store, bookie, _FRAME, 10.0)  # type: ignore[arg-type]

    async def move(self, what: str) -> None:
        """Make one move of MOVES. Raises MetadataUnavailable."""
        moves: dict[str, Callable[[], Awaitable[None]]] = {
            "removal": self._remove,
            "uid": self._free_uid,
            "deletion": self._delete,
            "numbers": self._write_numbers,
            "late key": self._hold_what_goes,
            "links": self._make_many,
        }
        await moves[what]()
        self._report.situation(f"a hostile tenant tried: {what}")

    # -- asking -------------------------------------------------------------------------------------------

    async def _ask(self, kind: RequestKind, **fields: Any) -> bool:
        """Return whether a request was carried out. Raises MetadataUnavailable, when that is not known."""
        try:
            await self._session.carry_out(KeyRequest(kind, **fields))
        except MetadataUnavailable:
            raise
        except BuckramError:
            return False
        return True

    async def _change(self, *ops: KeyOp) -> bool:
        return await self._ask(RequestKind.CHANGE, ops=ops)

    async def _refused(self, *ops: KeyOp) -> None:
        """A change that is about what is another's must be refused."""
        done = await self._change(*ops)
        self._report.check(
            "isolated", not done, "a hostile tenant was let {}", [(type(op).__name__, op.key) for op in ops]
        )

    async def _version(self, key: str) -> int:
        """The version of a key as it is, -1 where there is none: the tenant guesses it."""
        try:
            return (await self.store.keys.get(key)).version
        except NoSuchKey:
            return -1

    async def _own(self) -> tuple[Head, SetValue]:
        """The own head, and a change of it that changes nothing."""
        key = self.layout.head(self.bait)
        found = await self.store.keys.get(key)
        return decode_head(key, found.value), SetValue(key, found.value, found.version)

    async def _other(self) -> Other | None:
        """A stream of an honest tenant: its head's key, its name, its head with the version; None if there is none."""
        names = sorted(self._facts.current)
        if not names:
            return None
        name = self._rng.choice(names)
        key = self.layout.head(stream_name(name))
        try:
            found = await self.store.keys.get(key)
        except NoSuchKey:
            return None
        return key, name, decode_head(key, found.value), found.version

    def _victim(self, own: Head | None = None) -> LedgerId:
        """A ledger of an honest tenant; not one that the own head names since it went past the bookies."""
        named = set() if own is None else ids_of_head(own)
        left = [ledger for ledger in sorted(self._facts.owned) if ledger not in named][-8:]
        return self._rng.choice(left) if left else 2**62

    # -- moves --------------------------------------------------------------------------------------------

    async def _remove(self) -> None:
        """Delete a record along with a change of the own head, alone, and by saying that it went."""
        ledger = self._victim()
        key = await self.store.ledgers.key(ledger)
        _, same = await self._own()
        gone = Delete(key, await self._version(key))
        await self._refused(same, gone)
        await self._refused(gone)
        done = await self._ask(RequestKind.REMOVED, key=key)
        self._report.check("isolated", not done, "a hostile tenant said that ledger {} went, and was believed", ledger)

    async def _free_uid(self) -> None:
        """Free the uid of a stream that is there, or take that of another's."""
        own, same = await self._own()
        mine = self.layout.data(own.uid)
        if not own.deleting:
            await self._refused(Delete(mine, await self._version(mine)))
        found = await self._other()
        if found is None:
            return
        _, _, head, _ = found
        data = self.layout.data(head.uid)
        taken = Create(self.layout.head(StreamName(HOSTILE, "taken")), encode_head(Head(head.uid, 1)))
        await self._refused(Delete(data, await self._version(data)))
        await self._not_taken(found, taken)
        await self._not_taken(found, taken, Create(data, b""))
        await self._refused(replace(same, value=encode_head(replace(own, uid=head.uid))))
        await self._not_taken(found, Delete(same.key, same.version), Delete(mine, await self._version(mine)), taken)

    async def _not_taken(self, other: Other, *ops: KeyOp) -> None:
        """Nobody takes the uid of another's stream; once that is being deleted, its uid becomes free with its data."""
        if not await self._change(*ops):
            return
        key, _, before, _ = other
        try:
            now = decode_head(key, (await self.store.keys.get(key)).value)
        except NoSuchKey:
            now = replace(before, deleting=True)
        left = now.uid != before.uid or now.deleting
        self._report.check("isolated", left, "a hostile tenant took uid {} by {}", before.uid, [op.key for op in ops])
        for made in ops:
            if isinstance(made, Create):
                await self._change(Delete(made.key, await self._version(made.key)))

    async def _delete(self) -> None:
        """Mark another's head as being deleted, or the own one with a ledger of another's in its garbage."""
        own, same = await self._own()
        garbage = replace(own, deleting=True, garbage=(*own.garbage, self._victim(own)))
        await self._refused(replace(same, value=encode_head(garbage)))
        if (found := await self._other()) is not None:
            key, _, head, version = found
            await self._refused(SetValue(key, encode_head(replace(head, deleting=True)), version))
            await self._refused(Delete(key, version))
        if self._rng.random() < 0.3:
            await self._change(replace(same, value=encode_head(replace(own, deleting=True))))

    async def _write_numbers(self) -> None:
        """Write numbers that no program writes: whoever goes through the metadata of all streams reads them."""
        own, same = await self._own()
        data, value = self.layout.data(own.uid), self._rng.choice(ABSURD)
        for key in (f"{data}/cursors/c", self.layout.lease(own.uid), f"{self.layout.exports(own.uid)}/x"):
            await self._change(Create(key, value))
        await self._change(Create(self.layout.intent(own.uid, self._victim()), value))
        far = replace(own, end=2**63 - 1, last_append=2**63 - 1)
        await self._change(replace(same, value=encode_head(far)))
        await self._change(replace(same, value=same.value.replace(b'"epoch":', b'"epoch":9999999999999999999')))

    async def _hold_what_goes(self) -> None:
        """Hold a ledger, of one's own or another's, while its record is deleted."""
        own, _ = await self._own()
        other = await self.store.ledgers.key(self._victim())
        await self._refused(Create(f"{other}/{own.uid}", str(self.bait).encode()))
        ledger = await self._made(own.uid)
        if ledger is None:
            return
        key = await self.store.ledgers.key(ledger)
        hold = Create(f"{key}/{own.uid}", str(self.bait).encode())
        changes = [self._change(Delete(key, await self._version(key))), self._change(hold)]
        self._rng.shuffle(changes)
        await asyncio.gather(*changes)
        children: Sequence[str] = ()
        if await self._version(key) < 0:
            children = await self.store.keys.children(key)
        self._report.check("isolated", not children, "below the deleted record of ledger {} is {}", ledger, children)
        await self._change(Delete(hold.key, await self._version(hold.key)))
        await self._change(Delete(key, await self._version(key)))

    async def _made(self, uid: str) -> LedgerId | None:
        """Make a ledger of the own stream; None if that fails."""
        try:
            ledger = await self._session.carry_out(KeyRequest(RequestKind.ALLOCATE))
        except MetadataUnavailable:
            raise
        except BuckramError:
            return None
        assert isinstance(ledger, int)
        mark = owner_mark(self.bait, uid, "segment")
        birth, token = self._rng.randbytes(16), self._rng.randrange(1, 2**62)
        record = created(1, 1, 1, ("b1",), custom_metadata=mark, birth=birth, creator_token=token)
        value = serialise(record)
        return ledger if await self._ask(RequestKind.LEDGER_CREATE, number=ledger, value=value) else None

    async def _make_many(self) -> None:
        """Make links, namespaces and streams of many names, which all clients and servers would go through."""
        places = f"{self.store.own}/streams"
        for number in range(4):
            name = self._rng.choice(("default", HOSTILE, f"n{number}"))
            await self._refused(Create(f"{places}/replication/{name}", b"{}"))
            await self._refused(Create(f"{places}/replication/{name}/x{number}", b"{}"))
            await self._refused(Create(f"{places}/namespaces/n{number}", b"{}"))
            other = self.layout.head(StreamName(f"n{number}", "s"))
            uid = f"{self._rng.getrandbits(64):016x}"
            await self._refused(Create(other, encode_head(Head(uid, 1))), Create(self.layout.data(uid), b""))


__all__ = ["MOVES", "Gated"]
