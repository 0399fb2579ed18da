"""Every request that a tenant is refused is noted for the audit trail: who, what he wanted, of which key, and why."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.gate_kit import INTENT, TENANT, Stream, Tenant, rows
from tests.support.metadata_service_kit import service_store
from tests.support.polling import until
from tests.support.secure_kit import Guarded, guarded

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.config import AuthConfig
from buckram.core.security import write_limits as bounds
from buckram.core.security.write_limits import Bound
from buckram.core.tenants.audit_trail import REFUSED, AuditEvent
from buckram.errors import AccessRefused, KeyExists, LedgerIdRefused, QuotaExceeded, ValueTooLarge
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.service.keys import ServiceKeys
from buckram.metadata.service.uri import ServiceUri
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
from buckram.types import CheckVersion, Create, Delete, LedgerId, SetValue

AUTH = AuthConfig(logins="token", authorisation="on")


class Case:
    """Mallory with a stream of his own, alice with one that has a ledger, and what is noted."""

    def __init__(self, running: Guarded, log: AuditLog, clients: AsyncExitStack) -> None:
        self.running, self.log, self._clients = running, log, clients
        self.mine: Stream
        self.theirs: Stream
        self.ledger: LedgerId

    async def tenant(self, subject: str, *roles: str) -> Tenant:
        network = self.running.network(token=await self.running.token(subject, *roles))
        keys = ServiceKeys(ServiceUri((("127.0.0.1", self.running.port),)), network)
        await keys.start()
        self._clients.push_async_callback(keys.close)
        return Tenant(service_store(keys, "service", random.Random(7), 10.0), random.Random(7))

    async def start(self) -> None:
        guard = self.running.bookie._guard
        assert guard is not None
        for name, namespace in (("mallory", "mall"), ("alice", "shop")):
            await self.running.store.keys.create(f"{self.running.store.own}/streams/namespaces/{namespace}", b"{}")
            wanted = await self.running.security.change_acl(
                lambda acl, name=name, on=namespace: acl.granting(f"token:{name}", on, TENANT)
            )
        await until(lambda: guard.state.acl == wanted)
        self.theirs = await (await self.tenant("alice")).stream("shop/orders", "a" * 16)
        self.ledger = await self.theirs.make_listed()
        self.mine = await (await self.tenant("mallory")).stream("mall/bait", "b" * 16)
        self.refused()

    def noted(self) -> list[AuditEvent]:
        """The events that were noted since."""
        events = self.log.batch(1000)
        self.log.written(events)
        return list(events)

    def refused(self) -> list[AuditEvent]:
        """The refusals that were noted since."""
        return [event for event in self.noted() if event.result == REFUSED]

    def only(self, principal: str = "token:mallory") -> tuple[str, str]:
        """What was wanted of what, by the only refusal since."""
        (event,) = self.refused()
        assert event.principal == principal
        assert event.detail
        assert event.peer
        return event.action, event.what


@pytest.fixture
async def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    log = AuditLog(production_runtime().clock, NullStats())
    async with guarded(tmp_path, auth=AUTH, events=log) as running, AsyncExitStack() as clients:
        made = Case(running, log, clients)
        await made.start()
        log._refusals._first = 1000
        yield made


async def test_a_uid_of_another_stream(case: Case) -> None:
    mine, keys = case.mine, case.mine.tenant.keys
    value = mine.head_value().replace(mine.uid.encode(), case.theirs.uid.encode())
    with pytest.raises(AccessRefused):
        await keys.create(f"{mine.head_key}2", value)
    assert case.only() == ("create", f"key {mine.head_key}2")
    with pytest.raises(AccessRefused):
        await keys.set(mine.head_key, value, 0)
    assert case.only() == ("policy", f"key {mine.head_key}")
    new = mine.head_value().replace(mine.uid.encode(), b"c" * 16)
    with pytest.raises(AccessRefused):
        await keys.multi([Create(f"{mine.head_key}{number}", new) for number in (3, 4)])
    assert case.only() == ("create", f"key {mine.layout.data('c' * 16)}")


async def test_the_name_of_a_ledger_of_another_stream(case: Case) -> None:
    with pytest.raises(AccessRefused):
        await case.mine.tenant.keys.multi([case.mine.setting(0, tail=rows([case.ledger]))])
    assert case.only() == ("policy", f"key {case.mine.head_key}")
    page = case.mine.page(case.ledger)
    with pytest.raises(AccessRefused):
        await case.mine.tenant.keys.multi([page])
    assert case.only() == ("create", f"key {page.key}")


async def test_an_id_that_was_not_given(case: Case) -> None:
    store = case.mine.tenant.store
    with pytest.raises(LedgerIdRefused):
        await store.create_ledger(4711, case.mine.record())
    assert case.only() == ("create", "ledger 4711")
    with pytest.raises(LedgerIdRefused):
        await case.mine.tenant.keys.create(case.mine.layout.intent(case.mine.uid, 4712), INTENT)
    assert case.only() == ("create", "ledger 4712")


async def test_a_bound(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    cursors, keys = f"{case.mine.data}/cursors", case.mine.tenant.keys
    with pytest.raises(ValueTooLarge):
        await keys.multi([Create(f"{cursors}/a", b""), Create(f"{cursors}/b", bytes(2000))])
    assert case.only() == ("create", f"key {cursors}/b")
    with pytest.raises(AccessRefused):
        await keys.create(f"{cursors}/{'n' * 500}", b"{}")
    assert case.only()[0] == "create"
    monkeypatch.setitem(bounds.OF_STREAM, "cursors/", Bound("a cursor", 1024, 1))
    await keys.create(f"{cursors}/a", b"{}")
    with pytest.raises(AccessRefused, match="limit"):
        await keys.create(f"{cursors}/b", b"{}")
    assert case.only() == ("create", f"key {cursors}")


async def test_a_quota(case: Case) -> None:
    admin = await case.tenant("root", "admin")
    quotas = TenantStore(case.running.store)
    await quotas.turn_on()
    await quotas.set_quotas("mall", {"streams": 1})
    accounting = case.running.bookie.accounting
    assert accounting is not None
    await until(lambda: bool(accounting.quotas))
    with pytest.raises(QuotaExceeded):
        await case.mine.tenant.stream("mall/more", "d" * 16)
    assert case.only() == ("create", f"key {case.mine.head_key.removesuffix('bait')}more")
    with pytest.raises(QuotaExceeded):
        await admin.stream("mall/more", "d" * 16)
    assert case.only("token:root") == ("create", f"key {case.mine.head_key.removesuffix('bait')}more")


async def test_what_was_not_granted(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, own = case.mine.tenant.keys, case.running.store.own
    head = case.theirs.head_key
    with pytest.raises(AccessRefused):
        await keys.get(head)
    assert case.only() == ("read", f"key {head}")
    with pytest.raises(AccessRefused):
        await keys.children(head.removesuffix("/orders"))
    assert case.only() == ("list", f"key {head.removesuffix('/orders')}")
    with pytest.raises(AccessRefused):
        await keys.children_with_values(head.removesuffix("/orders"))
    assert case.only() == ("list", f"key {head.removesuffix('/orders')}")
    with pytest.raises(AccessRefused):
        await keys.delete(head, 1)
    assert case.only() == ("delete", f"key {head}")
    monkeypatch.setattr("buckram.metadata.service.keys.check_op", lambda op: None)  # a client of somebody else
    with pytest.raises(AccessRefused):
        await keys.create(f"{own}/x\nforged\x1b[2J", b"")
    assert case.only() == ("create", f"key {own}/x\nforged\x1b[2J")


async def test_secrets_and_also_by_an_administrator(case: Case) -> None:
    secret = f"{case.running.store.own}/security/keys"
    with pytest.raises(AccessRefused):
        await case.mine.tenant.keys.get(secret)
    assert case.only() == ("read", f"key {secret}")
    admin = await case.tenant("root", "admin")
    for asked in (admin.keys.get(secret), admin.keys.children(secret)):
        with pytest.raises(AccessRefused):
            await asked
    assert [(one.principal, one.action) for one in case.refused()] == [("token:root", "read"), ("token:root", "list")]
    with pytest.raises(AccessRefused):
        await admin.keys.multi([Create(f"{secret}/x", b"")])
    assert case.only("token:root") == ("create", f"key {secret}/x")


async def test_the_deletion_of_a_stream_that_is_more_than_records(case: Case) -> None:
    machine = await case.mine.tenant.stream("mall/machine", "e" * 16, snapshots=())
    with pytest.raises(AccessRefused):
        await machine.tenant.keys.delete(machine.head_key, 0)
    assert case.only() == ("delete", f"key {machine.head_key}")


async def test_what_is_as_things_are_is_no_refusal(case: Case) -> None:
    keys = case.mine.tenant.keys
    await keys.create(f"{case.mine.data}/cursors/c", b"{}")
    for ops in (
        [Create(f"{case.mine.data}/cursors/c", b"{}")],
        [SetValue(f"{case.mine.data}/cursors/c", b"{}", 7)],
        [Delete(f"{case.mine.data}/cursors/d", 0)],
    ):
        with pytest.raises(Exception, match="cursors"):
            await keys.multi(ops)
    assert case.refused() == []


async def test_a_new_namespace_once_by_whoever_made_it(case: Case) -> None:
    guard = case.running.bookie._guard
    assert guard is not None
    wanted = await case.running.security.change_acl(lambda acl: acl.granting("token:mallory", "mall*", ("admin",)))
    await until(lambda: guard.state.acl == wanted)
    admin = await case.tenant("root", "admin")
    places, own = f"{case.running.store.own}/streams/namespaces", case.mine.tenant.keys
    case.noted()
    await own.create(f"{places}/mall1", b"{}")
    await own.multi([Create(f"{places}/mall2", b"{}"), CheckVersion(f"{places}/mall", 0)])
    await admin.keys.create(f"{places}/other", b"{}")
    with pytest.raises(KeyExists):
        await own.create(f"{places}/mall1", b"{}")
    with pytest.raises(AccessRefused):
        await own.create(f"{places}/other2", b"{}")
    done, refused = ("create", "done"), ("create", REFUSED)
    assert [(one.principal, (one.action, one.result), one.what, one.namespace) for one in case.noted()] == [
        ("token:mallory", done, "namespace mall1", "mall1"),
        ("token:mallory", done, "namespace mall2", "mall2"),
        ("token:root", done, "namespace other", "other"),
        ("token:mallory", refused, f"key {places}/other2", ""),
    ]
