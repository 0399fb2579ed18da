"""The metadata session of one connection: what each request does, after `KeyAccess` allowed it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from buckram.bookie.service.noting import Noting
from buckram.bookie.service.session import Session
from buckram.core.security.access import KeyAccess, KeyRules, KeyUse
from buckram.core.security.namespaces import uid_in
from buckram.errors import AccessRefused, MetadataError, MetadataUnavailable, NoSuchKey
from buckram.metadata.keys import MAX_PAGE, PromptKeys
from buckram.metadata.layout import SECURITY
from buckram.metadata.service.packets import Event, KeyReply, KeyRequest, Kind, encode_event, names_that_fit
from buckram.metadata.store import TreeStore
from buckram.seams import KeyStore, Notify
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, LedgerId, SetValue

MAX_WATCHES = 20_000
"""Keys that one connection may watch."""
_BETWEEN_SCANS_S = 1.0
"""Between two readings of all heads for the stream of a key that is not known."""
_USES: dict[type, KeyUse] = {
    Create: KeyUse.CREATE,
    SetValue: KeyUse.SET,
    Delete: KeyUse.DELETE,
    CheckVersion: KeyUse.READ,
}


class Creations(Protocol):
    """Holds what is created to quotas (`bookie/creations.py`). Each raises QuotaExceeded."""

    async def ledger(self, value: bytes) -> None: ...
    async def key(self, key: str, value: bytes) -> None: ...


class Shared(Protocol):
    """What all connections of a bookie share (`bookie/service/metadata.py:SharedStore`)."""

    @property
    def store(self) -> TreeStore: ...
    @property
    def creations(self) -> Creations | None: ...
    @property
    def noting(self) -> Noting | None: ...
    def watch(self, place: tuple[Kind, str], session: KeySession) -> Notify: ...
    def forget(self, session: KeySession) -> None: ...


class KeySession:
    """`heard`, `in_work` and `timeout_s` belong to the service."""

    def __init__(
        self,
        session: Session,
        shared: Shared,
        open_store: Callable[[], Awaitable[TreeStore]],
        access: KeyAccess,
        room: int,
        timeout_s: float,
    ) -> None:
        self.heard, self.in_work, self.timeout_s = 0.0, 0, timeout_s
        self.places: dict[tuple[Kind, str], Notify] = {}
        """What the client waits for."""
        self._session, self._shared, self._open_store = session, shared, open_store
        self._rules, self._room = access.rules(session.principal), room
        self._scanned = float("-inf")
        self._allocated: set[LedgerId] = set()
        """Ids that this session was given and has not used."""
        self._own: TreeStore | None = None
        self._prompt = _prompt(shared.store)
        self._opening = asyncio.Lock()
        self._closed = False

    def prompt_for(self, request: KeyRequest) -> PromptKeys | None:
        """Where a read finds its answer without waiting; None: `carry_out` gives it. A read does
        not pass what the client asked for before it."""
        refused = request.watch or self.in_work or self._closed or self._is_secret(request.key)
        return None if refused else self._prompt

    def may_see(self, key: str, found: KeyValue) -> bool:
        """Whether the client may have what was read for it; False: `carry_out` decides, and says why."""
        rules = self._rules
        if rules is None:
            return True
        if rules.refusal(key, KeyUse.READ, found.value) != "":
            return False
        rules.learn(key, found.value)
        return True

    def prompt_for_change(self, ops: Sequence[KeyOp]) -> PromptKeys | None:
        """Where a change is begun that needs no look at what is there; None: `carry_out` does it."""
        if self._rules is not None or self._closed or self._prompt is None or self._shared.noting is not None:
            return None
        return None if any(map(self._needs_a_look, ops)) else self._prompt

    def _needs_a_look(self, op: KeyOp) -> bool:
        """Whether a change is a secret's, a first session key, or a new stream, which quotas and uids are about."""
        first = isinstance(op, Create) and op.ephemeral and self._own is None
        return first or self._makes_stream(op) or self._is_secret(op.key)

    def _makes_stream(self, op: KeyOp) -> bool:
        return isinstance(op, Create) and op.key.startswith(f"{self._store.own}/streams/heads/")

    async def carry_out(self, request: KeyRequest) -> KeyReply:
        """Return the reply, or raise what the store or `KeyAccess` says."""
        match request.kind:
            case Kind.GET:
                return await self._get(request)
            case Kind.CHILDREN:
                await self._check(request.key, KeyUse.LIST)
                watch = self._watch((Kind.CHILDREN_CHANGED, request.key)) if request.watch else None
                return names_that_fit(await self._children(request, watch), self._room)
            case Kind.VALUES:
                await self._check(request.key, KeyUse.LIST)
                return self._fitting(await self._values(request))
            case Kind.CHANGE:
                return await self._change(request.ops)
            case Kind.SYNC:
                await self._keys.sync()
                return None
            case Kind.CLOSE:
                await self.close()
                return None
            case Kind.INSTANCE_ID:
                return await self._store.instance_id()
            case Kind.HELLO:
                raise MetadataError("this connection has a metadata session already")
            case _:
                return await self._ledgers(request)

    async def _ledgers(self, request: KeyRequest) -> KeyReply:
        """What only who opened the store knows: where ledgers are, and which ids are given."""
        tree, root = self._store.ledgers, self._store.root
        limit = min(max(request.limit, 1), MAX_PAGE)
        match request.kind:
            case Kind.LEDGER_KEY:
                return await tree.key(request.number)
            case Kind.LEDGER_CREATE:
                await self._check(await tree.key(request.number), KeyUse.CREATE, request.value)
                # An id that this session was not given counts as chosen: then its use is remembered for ever.
                given = self._rules is None or request.number in self._allocated
                self._allocated.discard(request.number)
                if self._shared.creations is not None:
                    await self._shared.creations.ledger(request.value)
                version = await tree.create(request.number, request.value, chosen=request.watch or not given)
                if self._shared.noting is not None:
                    self._shared.noting.created(self._session, request.number, request.value)
                return version
            case Kind.ALLOCATE:
                await self._check(root, KeyUse.CREATE)
                self._allocated.add(number := await tree.allocate())
                return number
            case Kind.NEXT_ID:
                await self._check(root, KeyUse.READ)
                return await tree.next_id()
            case Kind.RAISE_NEXT_ID:
                await self._check(root, KeyUse.SET)
                await tree.raise_next_id(request.number)
                return None
            case Kind.LEDGERS:
                await self._check(root, KeyUse.LIST)
                return names_that_fit([str(one) for one in await tree.page(request.number, limit)], self._room)
            case Kind.RECORDS:
                await self._check(root, KeyUse.LIST)
                return self._fitting([(str(one), found) for one, found in await tree.records(request.number, limit)])
            case Kind.REMOVED:
                await self._check(request.key, KeyUse.DELETE)
                await tree.removed(request.key)
                return None
            case Kind.MANAGER_NAME:
                return await tree.manager_name()
            case Kind.STRAYS:
                await self._check(root, KeyUse.LIST)
                return names_that_fit(await tree.strays(), self._room)
            case other:
                raise MetadataError(f"no request of a client: {other.name}")

    async def _get(self, request: KeyRequest) -> KeyValue:
        key, rules = request.key, self._rules
        self._refuse_secrets(key)
        # A ledger's record says itself whose it is; what was known of the id may be of another ledger.
        why = "" if rules is None or rules.is_ledger(key) else rules.refusal(key, KeyUse.READ)
        if (why is not None and why != "") or (why is None and key.startswith(f"{self._store.own}/")):
            await self._check(key, KeyUse.READ)
        place = (Kind.VALUE_CHANGED, key)
        watch = self._watch(place) if request.watch else None
        found = await self._keys.get(key, watch)
        if rules is not None:
            try:
                await self._check(key, KeyUse.READ, found.value)
            except AccessRefused:
                self.places.pop(place, None)  # nor is the client told when it changes
                raise
            rules.learn(key, found.value)
        return self._seen(found)

    async def _children(self, request: KeyRequest, watch: Notify | None) -> list[str]:
        """Names below a key, and of streams those that the principal may read; empty only when there are no more."""
        rules, after = self._rules, request.after
        while True:
            names = await self._keys.children(request.key, after=after, limit=request.limit, watch=watch)
            if rules is None or not request.key.startswith(f"{self._store.own}/streams/heads/"):
                return names
            seen = [name for name in names if rules.refusal(f"{request.key}/{name}", KeyUse.READ) == ""]
            if seen or not names:
                return seen
            after, watch = names[-1], None

    async def _values(self, request: KeyRequest) -> list[tuple[str, KeyValue]]:
        """Those that the principal may read; empty only when there are no more."""
        rules, after = self._rules, request.after
        while True:
            found = await self._keys.children_with_values(request.key, after=after, limit=request.limit)
            seen = [
                (name, self._seen(value))
                for name, value in found
                if rules is None or rules.refusal(f"{request.key}/{name}", KeyUse.READ, value.value) == ""
            ]
            if seen or not found:
                return seen
            after = found[-1][0]

    async def _change(self, ops: Sequence[KeyOp]) -> KeyReply:
        rules, asked = self._rules, ops
        ops = ops if rules is None else self._with_data_keys(ops)
        # What a client wants to create is believed by the rest of its request only, and by others when it is there.
        trial = None if rules is None else rules.trial()
        for op in ops:
            value = op.value if isinstance(op, Create | SetValue) else None
            await self._check_uid(op)
            if rules is not None and isinstance(op, SetValue | Delete) and rules.is_ledger(op.key):
                await self._find_out(rules, op.key)  # by the record that is there now; its version makes that one step
            await self._check(op.key, _USES[type(op)], value, trial)
            if isinstance(op, Create) and trial is not None:
                trial.learn(op.key, op.value)
            if isinstance(op, Create) and self._shared.creations is not None:
                await self._shared.creations.key(op.key, op.value)
        noting = self._shared.noting
        before = {} if noting is None else await noting.before(ops)
        done = await self._changed(ops)
        if noting is not None:
            noting.done(self._session, ops, before)
        for op in ops:
            if isinstance(op, Create) and rules is not None:
                rules.learn(op.key, op.value)
        return 0 if len(asked) == 1 < len(ops) else done

    async def _changed(self, ops: Sequence[KeyOp]) -> KeyReply:
        if self._own is None and any(isinstance(op, Create) and op.ephemeral for op in ops):
            await self._open_own()
        keys = self._keys
        if len(ops) != 1:
            await keys.multi(ops)
            return None
        match ops[0]:
            case Create(key, value, ephemeral):
                return await keys.create(key, value, ephemeral=ephemeral)
            case SetValue(key, value, version):
                return await keys.set(key, value, version)
            case Delete(key, version):
                await keys.delete(key, version)
                return None
            case check:
                await keys.multi([check])
                return None

    async def _check(self, key: str, use: KeyUse, value: bytes | None = None, trial: KeyRules | None = None) -> None:
        """Raise AccessRefused unless the principal may do that, by `trial` in place of the session's rules."""
        self._refuse_secrets(key)
        rules = self._rules
        if rules is None:
            return
        judge = trial or rules
        why = judge.refusal(key, use, value)
        if why is None:
            await self._find_out(rules, key)
            why = judge.refusal(key, use, value)
        if why != "":
            why = why or "nothing is known of the stream or ledger that it belongs to"
            error = AccessRefused(key, f"{self._session.principal} may not {use.value} it: {why}")
            if self._shared.noting is not None:
                self._shared.noting.refused(self._session, use.value, error)
            raise error

    def _refuse_secrets(self, key: str) -> None:
        """Whoever has the signing key is everybody: administrators, too, see these keys in the store itself only."""
        if self._is_secret(key):
            raise AccessRefused(key, "keys, revocations and grants are read and written in the store itself only")

    def _is_secret(self, key: str) -> bool:
        secrets = f"{self._store.own}/{SECURITY}"
        return key.startswith(secrets) and key[len(secrets) : len(secrets) + 1] in ("", "/")

    async def _find_out(self, rules: KeyRules, key: str) -> None:
        """Read what says which namespace a key belongs to: a ledger's record, or the heads of streams. NoSuchKey."""
        streams = f"{self._store.own}/streams"
        ledger = key.rpartition("/")[0]
        if rules.is_ledger(ledger):  # a stream holds it: whose both are matters
            rules.learn(ledger, (await self._keys.get(ledger)).value)
        elif not key.startswith(f"{streams}/data/"):
            rules.learn(key, (await self._keys.get(key)).value)
            return
        now = asyncio.get_running_loop().time()
        if now < self._scanned + _BETWEEN_SCANS_S:
            return
        self._scanned = now
        heads = f"{streams}/heads"
        for namespace in await self._keys.children(heads, limit=MAX_PAGE):
            if rules.refusal(f"{heads}/{namespace}", KeyUse.LIST) != "":
                continue
            after = ""
            while page := await self._keys.children_with_values(f"{heads}/{namespace}", after=after):
                for name, found in page:
                    rules.learn(f"{heads}/{namespace}/{name}", found.value)
                after = page[-1][0]

    async def _check_uid(self, op: KeyOp) -> None:
        """A stream's uid says whose its data are: it never changes, and nobody may give a stream that of another."""
        streams = f"{self._store.own}/streams"
        if self._rules is None or not isinstance(op, Create | SetValue) or not op.key.startswith(f"{streams}/heads/"):
            return
        uid = uid_in(op.key, op.value)
        if isinstance(op, SetValue):
            good = bool(uid) and uid_in(op.key, (await self._keys.get(op.key)).value) == uid
        else:
            taken = bool(uid) and await self._is_there(f"{streams}/data/{uid}")
            good = bool(uid) and (not taken or await self._is_there(op.key))  # then it is said that the stream exists
        if not good:
            raise AccessRefused(op.key, f"{self._session.principal} may not use the uid of another stream")

    def _with_data_keys(self, ops: Sequence[KeyOp]) -> Sequence[KeyOp]:
        """With the key that each new stream's data are below: whoever creates it first has the uid."""
        streams = f"{self._store.own}/streams"
        made = {op.key for op in ops if isinstance(op, Create)}
        uids = [uid_in(op.key, op.value) for op in ops if isinstance(op, Create) and self._makes_stream(op)]
        wanted = dict.fromkeys(f"{streams}/data/{uid}" for uid in uids if uid)
        return [*ops, *(Create(key, b"") for key in wanted if key not in made)]

    async def _is_there(self, key: str) -> bool:
        try:
            await self._keys.get(key)
        except NoSuchKey:
            return False
        return True

    @property
    def _store(self) -> TreeStore:
        return self._own or self._shared.store

    @property
    def _keys(self) -> KeyStore:
        return self._store.keys

    def _seen(self, found: KeyValue) -> KeyValue:
        """As the client sees it: what the shared session owns is not the client's."""
        return replace(found, owned=False) if found.owned and self._own is None else found

    def _fitting(self, found: list[tuple[str, KeyValue]]) -> list[tuple[str, KeyValue]]:
        """What has room in a frame, at least one; a page may be shorter than asked for."""
        room = self._room
        for at, (name, value) in enumerate(found):
            room -= len(name.encode()) + len(value.value) + 16
            if room < 0:
                return found[: max(at, 1)]
        return found

    # Watches and the end

    def _watch(self, place: tuple[Kind, str]) -> Notify:
        if place not in self.places and len(self.places) >= MAX_WATCHES:
            raise MetadataUnavailable(f"{place[1]}: this connection watches {MAX_WATCHES} keys, the limit")
        own = self._own is not None
        notify = self._shared.watch(place, self) if not own else self.places.get(place)
        if notify is None or (own and not isinstance(notify, _OwnWatch)):
            notify = _OwnWatch(self, place)
        self.places[place] = notify
        return notify

    def changed(self, place: tuple[Kind, str]) -> None:
        """Tell the client; it is told once."""
        if self.places.pop(place, None) is not None:
            self._session.send(encode_event(Event(*place)))

    async def _open_own(self) -> None:
        async with self._opening:
            if self._own is not None:
                return
            own = await self._open_store()
            try:
                await own.keys.sync()  # it may be behind what the shared one has shown
            except BaseException:
                await own.close()
                raise
            if self._closed:
                await own.close()
                raise MetadataUnavailable("this metadata session has ended")
            own.keys.on_session_lost(self._own_lost)
            self._own, self._prompt = own, _prompt(own)

    def _own_lost(self) -> None:
        self.places.clear()
        self._session.send(encode_event(Event(Kind.SESSION_LOST, "")))

    async def close(self) -> None:
        """End the session: its keys go, and nobody is told of anything any more. Idempotent."""
        self._closed = True
        self._shared.forget(self)
        self.places.clear()
        async with self._opening:
            own, self._own = self._own, None
        if own is not None:
            with contextlib.suppress(MetadataError):
                await own.close()


def _prompt(store: TreeStore) -> PromptKeys | None:
    return store.keys if isinstance(store.keys, PromptKeys) else None


class _OwnWatch:
    """The notification of a watch in the session's own store; one object for each place."""

    def __init__(self, session: KeySession, place: tuple[Kind, str]) -> None:
        self._session, self._place = session, place

    def __call__(self) -> None:
        self._session.changed(self._place)
