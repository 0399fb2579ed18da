"""Tenants of one metadata store, each behind a bookie's metadata service that holds it to its grants; no bookie stores
anything. `mallory` may do everything in namespace `mall`, and `alice` in namespace `shop`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tests.support.metadata_service_kit import ServedMetadata, service_store

from buckram.core.ledgers.metadata import created
from buckram.core.security.acl import Acl
from buckram.core.security.key_access import KeyRules
from buckram.core.security.namespace_rules import ClusterKeys, Known, NamespaceRules
from buckram.core.security.principal import Principal
from buckram.core.streams.metadata.head import (
    LEDGER,
    Head,
    Offloaded,
    Page,
    Segment,
    Summary,
    decode_head,
    encode_head,
    encode_page,
)
from buckram.core.streams.names import StreamName, owner_mark
from buckram.errors import NoSuchKey
from buckram.metadata.service.store import ServiceStore
from buckram.metadata.tree.store import TreeStore
from buckram.seams import KeyStore
from buckram.streams.shared.layout import Layout
from buckram.types import Create, Delete, LedgerId, LedgerMetadata, SetValue

TENANT = ("read", "append", "create", "delete")
INTENT = json.dumps({"epoch": 0, "purpose": "segment", "time": 1, "state": "made"}).encode()
_SUMMARY = Summary(1, 0, 1, 1, 1, 1, 1, -1, -1)


class Backend(Protocol):
    """As in `tests/contracts/conftest.py`."""

    name: str

    async def open(self) -> KeyStore: ...
    def store(self, keys: KeyStore, uri: str, rng: random.Random, takeover_wait_s: float) -> TreeStore: ...


class Grants:
    """KeyAccess that knows one principal."""

    def __init__(self, store: TreeStore, name: str, acl: Acl) -> None:
        self.store, self.principal, self.acl = store, Principal(f"token:{name}"), acl

    def rules(self, principal: Principal) -> KeyRules:
        is_ledger: Callable[[str], bool] = lambda key: self.store.layout.ledger_of(key) is not None  # noqa: E731
        places = ClusterKeys(self.store.root, self.store.own, is_ledger)
        return NamespaceRules(places, lambda: self.acl, self.principal, Known())


class Stream:
    """A stream by its keys. `ledgers`: those that its head lists."""

    def __init__(self, tenant: Tenant, name: str, uid: str) -> None:
        space, _, bare = name.partition("/")
        self.tenant, self.name, self.uid = tenant, StreamName(space, bare), uid
        layout = Layout(tenant.store)
        self.layout, self.head_key, self.data = layout, layout.head(self.name), layout.data(uid)
        self.ledgers: list[LedgerId] = []

    def record(self, *, birth: bytes | None = None, name: StreamName | None = None, uid: str = "") -> LedgerMetadata:
        mark = owner_mark(name or self.name, uid or self.uid, "segment")
        drawn = self.tenant.rng.randbytes(16) if birth is None else birth
        token = self.tenant.rng.randrange(1, 2**62)
        return created(1, 1, 1, ("b",), custom_metadata=mark, birth=drawn, creator_token=token)

    async def make_ledger(self) -> LedgerId:
        """With an intent, as `streams/shared/ledgers.py` makes it."""
        ledger = await self.tenant.store.allocate_ledger_id()
        await self.tenant.keys.create(self.layout.intent(self.uid, ledger), INTENT)
        await self.tenant.store.create_ledger(ledger, self.record())
        return ledger

    async def make_listed(self) -> LedgerId:
        """As a writer lists a new ledger."""
        ledger = await self.make_ledger()
        head, version = await self.head()
        self.ledgers.append(ledger)
        await self.tenant.keys.multi(
            [self.setting(version, tail=rows(self.ledgers)), Delete(self.layout.intent(self.uid, ledger), 0)]
        )
        assert head.uid == self.uid
        return ledger

    async def head(self) -> tuple[Head, int]:
        found = await self.tenant.keys.get(self.head_key)
        return decode_head(self.head_key, found.value), found.version

    def setting(self, version: int, **fields: object) -> SetValue:
        return SetValue(self.head_key, self.head_value(**fields), version)

    def head_value(self, **fields: object) -> bytes:
        return encode_head(Head(self.uid, 1, **{"tail": rows(self.ledgers), **fields}))  # type: ignore[arg-type]

    def page(self, *ledgers: LedgerId, number: int = 0, kind: str = LEDGER) -> Create:
        key = self.layout.page(self.uid, number)
        return Create(key, encode_page(Page(number, rows(ledgers, kind))))


class Tenant:
    """A client of one principal. `keys` is what it says to its bookie."""

    def __init__(self, store: ServiceStore, rng: random.Random) -> None:
        self.store, self.keys, self.rng = store, store.keys, rng

    async def stream(self, name: str, uid: str = "", **fields: object) -> Stream:
        """Make a stream."""
        made = Stream(self, name, uid or f"{self.rng.getrandbits(64):016x}")
        await self.keys.multi([Create(made.head_key, made.head_value(**fields)), Create(made.data, b"")])
        return made

    async def ledger_key(self, ledger: LedgerId) -> str:
        return await self.store.ledgers.key(ledger)


class World:
    """`direct` is the store itself."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.served = backend, dict[str, ServedMetadata]()
        self.acl = Acl()
        self._seed, self._opened = 0, list[KeyStore]()
        self.direct: TreeStore

    async def start(self) -> None:
        self.direct = await self._open()
        await self.direct.initialise()
        for name, namespace in (("mallory", "mall"), ("alice", "shop")):
            self.acl = self.acl.granting(f"token:{name}", namespace, TENANT)
            await self.direct.keys.create(f"{self.direct.own}/streams/namespaces/{namespace}", b"{}")

    async def _open(self) -> TreeStore:
        self._seed += 1
        keys = await self.backend.open()
        store = self.backend.store(keys, f"{self.backend.name}:gate", random.Random(self._seed), 10.0)
        await keys.prepare()
        self._opened.append(keys)
        return store

    def grant(self, name: str, on: str, *permissions: str) -> None:
        self.acl = self.acl.granting(f"token:{name}", on, permissions)
        for served in self.served.values():
            served.service._access.acl = self.acl  # type: ignore[attr-defined]

    async def tenant(self, name: str) -> Tenant:
        """One more client of a principal, whose session is another one."""
        served = self.served.get(name)
        if served is None:
            served = self.served[name] = ServedMetadata(self._open, Grants(self.direct, name, self.acl))
            await served.start()
        self._seed += 1
        rng = random.Random(self._seed)
        return Tenant(service_store(await served.open(), f"served:{name}", rng, 10.0), rng)

    async def held(self, keys: Iterable[str]) -> dict[str, tuple[bytes, int] | None]:
        """What keys hold, with their versions, by the store itself."""
        found: dict[str, tuple[bytes, int] | None] = {}
        await self.direct.keys.sync()
        for key in keys:
            try:
                kept = await self.direct.keys.get(key)
                found[key] = kept.value, kept.version
            except NoSuchKey:
                found[key] = None
        return found

    async def close(self) -> None:
        for served in self.served.values():
            await served.close()
        for keys in self._opened:
            await keys.close()


def rows(ledgers: Sequence[LedgerId], kind: str = LEDGER) -> tuple[Segment, ...]:
    """Sealed segments of one record each."""
    place = None if kind == LEDGER else Offloaded("/files", "0" * 64)
    return tuple(Segment(at, one, at, 1, _SUMMARY, kind, place) for at, one in enumerate(ledgers))


__all__ = ["INTENT", "TENANT", "Backend", "Stream", "Tenant", "World", "rows"]
