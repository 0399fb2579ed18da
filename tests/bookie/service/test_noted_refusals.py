"""Whatever a bookie refuses for who asks leaves an event or a count, and each place that refuses is known here."""

from __future__ import annotations

import ast
import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.bookie.service.security.test_entry_access import AUTH, client_of, grant, prepared
from tests.bookie.service.test_doors import logged_in, new_ledger
from tests.support.bookie_kit import KEY, OTHER_KEY, Wire, stored
from tests.support.polling import until
from tests.support.secure_kit import Files, Guarded, guarded

import buckram
from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.config import AuthConfig
from buckram.core.entries.entry import Digest
from buckram.core.tenants.audit_trail import REFUSALS, REFUSED, AuditEvent
from buckram.core.wire.messages import Add, Auth, GetBookieInfo, Read, WriteLac
from buckram.errors import Code
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.service.packets import KeyRequest, RequestKind, encode_request
from buckram.runtime.net import local_sockets
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.runtime.net.security.secure_network import LoginRefused, SecureNetwork
from buckram.runtime.net.tcp import TcpNetwork
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
from buckram.types import DigestType

SOURCES = Path(buckram.__file__).parent
PLACES = {
    "bookie/service/security/entry_access.py": {"_look", "item", "_refuse"},
    "bookie/service/entries/adds.py": {"_decide", "_add_unusual", "_refuse_key"},
    "bookie/service/dispatch.py": {"_on_lac_verdict", "_refuse_lac", "_keep_lac"},
    "bookie/service/entries/fencing.py": {"_fence", "_refuse_key", "fence"},
    "bookie/service/rate_limiter.py": {"_refuse"},
    "core/wire/server_protocol.py": {"_auth_request", "_unauthenticated"},
}
"""Functions of a bookie that know of UNAUTHORIZED: what is answered so is noted by `on_refused` of the part, by `Ready`
with `refused`, or by `Close` of a connection that is not known yet."""


def test_each_place_that_refuses_is_known() -> None:
    found: dict[str, set[str]] = {}
    for file in [*(SOURCES / "bookie").rglob("*.py"), SOURCES / "core/wire/server_protocol.py"]:
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                isinstance(one, ast.Attribute) and one.attr == "UNAUTHORIZED" for one in ast.walk(function)
            ):
                found.setdefault(str(file.relative_to(SOURCES)), set()).add(function.name)
    assert found == PLACES, "a new place that refuses has to leave an event: see NotedEntries, and give it a test here"


class Case:
    def __init__(self, running: Guarded, log: AuditLog) -> None:
        self.running, self.log = running, log

    def refused(self) -> list[AuditEvent]:
        """Refusals that were noted since."""
        events = self.log.batch(100_000)
        self.log.written(events)
        return [event for event in events if event.result == REFUSED]

    def only(self) -> tuple[str, str, str]:
        (event,) = self.refused()
        return event.principal, event.action, event.what


@pytest.fixture
async def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    log = AuditLog(production_runtime().clock, NullStats())
    log._refusals._first = 1000
    async with guarded(tmp_path, auth=AUTH, events=log) as running:
        yield Case(running, log)


async def test_a_wrong_key_of_a_ledger(case: Case) -> None:
    running = case.running
    root = await logged_in(running, 3, await running.token("root", "admin"))
    ledger = await new_ledger(running, root)
    case.refused()
    packet = Digest(DigestType.CRC32C, b"wrong").seal_lac(ledger, 0)
    for request, action in (
        (Add(ledger, 1, OTHER_KEY, stored(ledger, 1)), "append"),
        (Add(ledger, 1, OTHER_KEY, stored(ledger, 1), recovery=True), "append"),
        (Read(ledger, -1, True, OTHER_KEY), "fence"),
        (WriteLac(ledger, 0, OTHER_KEY, packet), "append"),
    ):
        assert (await root.call(request)).code is Code.UNAUTHORIZED
        assert case.only() == ("token:root", action, f"ledger {ledger}"), request


async def test_a_ledger_that_is_not_there_and_one_of_another_are_noted_alike(case: Case) -> None:
    running = case.running
    root = await logged_in(running, 2, await running.token("root", "admin"))
    ledger = await new_ledger(running, root)
    await grant(running, "token:ann", "elsewhere", {"read", "append"})
    ann = await logged_in(running, 2, await running.token("ann"))
    case.refused()
    for number in (ledger, 987_654):
        for request, action in (
            (Read(number, 0), "read"),
            (Read(number, 0, True, KEY), "fence"),
            (Add(number, 1, KEY, stored(number, 1)), "append"),
        ):
            assert (await ann.call(request)).code is Code.UNAUTHORIZED
            assert case.only() == ("token:ann", action, f"ledger {number}"), request


async def test_refused_adds_are_counted_beyond_the_first(case: Case) -> None:
    running = case.running
    root = await logged_in(running, 2, await running.token("root", "admin"))
    ledger = await new_ledger(running, root)
    await grant(running, "token:ann", "shop", {"read"})
    ann = await logged_in(running, 2, await running.token("ann"))
    case.refused()
    case.log._refusals._first = 5
    for number in range(1, 101):
        assert (await ann.call(Add(ledger, number, KEY, stored(ledger, number)))).code is Code.UNAUTHORIZED
    assert (await ann.call(Read(ledger, 0))).code is Code.OK
    case.log.close()
    events = [one for one in case.refused() if one.principal == "token:ann"]
    assert [one.action for one in events] == ["append"] * 5 + [REFUSALS]
    assert {one.namespace for one in events[:5]} == {"shop"}
    assert events[-1].detail.startswith("append 95,")


async def test_a_quota_that_is_used_up(case: Case) -> None:
    running = case.running
    await prepared(running)
    root = await logged_in(running, 2, await running.token("root", "admin"))
    ledger = await new_ledger(running, root)
    quotas = TenantStore(running.store)
    await quotas.turn_on()
    await quotas.set_quotas("shop", {"stored_bytes": 1})
    accounting = running.bookie.accounting
    assert accounting is not None
    await until(lambda: bool(accounting.quotas))
    limiter = running.bookie.server.limiter
    assert limiter is not None
    await until(lambda: limiter.active and limiter.tenant("shop").stored_left <= 0)
    root = await logged_in(running, 2, await running.token("root", "admin"))
    case.refused()
    assert (await root.call(Add(ledger, 1, KEY, stored(ledger, 1)))).code is Code.UNAUTHORIZED
    (event,) = case.refused()
    assert (event.action, event.what, event.namespace) == ("append", f"ledger {ledger}", "shop")
    assert "stored_bytes" in event.detail


async def test_what_comes_before_a_login(case: Case) -> None:
    port = case.running.port
    case.refused()
    for protocol, request in (
        (3, GetBookieInfo()),
        (2, Read(1, 0)),
        (2, Add(1, 0, KEY, stored(1, 0))),
        (3, Auth("org.example.Unknown", b"x")),
    ):
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port), protocol)
        wire.send(request)
        await wire.frame()
        assert case.only() == ("anonymous", "login", "bookie"), request
        await wire.close()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port), 2)
    wire.writer.write(encode_request(1, KeyRequest(RequestKind.HELLO)))
    assert await wire.drained()
    assert case.only() == ("anonymous", "login", "bookie")
    with pytest.raises(LoginRefused):
        await case.running.network(token="x").connect("127.0.0.1", port, asyncio.Protocol)
    assert case.only() == ("anonymous", "login", "bookie")


async def test_a_peer_that_says_something_and_does_not_log_in_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    log = AuditLog(production_runtime().clock, NullStats())
    async with guarded(tmp_path, auth=AUTH, events=log, first_s=0.1, login_s=0.2) as running:
        case = Case(running, log)
        for said in (b"", b"\0\0"):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", running.port), 2)
            wire.writer.write(said)
            assert await wire.drained()
            events = case.refused()
            assert [one.action for one in events] == (["login"] if said else []), said
            await wire.close()


async def test_a_certificate_that_was_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    files = Files(tmp_path / "ca")
    log = AuditLog(production_runtime().clock, NullStats())
    auth = AuthConfig(logins="certificate", authorisation="on")
    async with guarded(tmp_path, files.bookie, auth, events=log) as running:
        case = Case(running, log)
        network = SecureNetwork(TcpNetwork(local=False), TlsFiles(files.known_client, server_side=False))
        transport, _ = await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        await until(lambda: any(one.principal.name == "cert:alice" for one in running.bookie.server.sessions))
        guard = running.bookie._guard
        assert guard is not None
        (known,) = [one for one in guard._connected.values() if one.certificate is not None]
        assert known.certificate is not None
        await running.security.withdraw_certificate(known.certificate)
        await until(lambda: bool(guard.why_withdrawn(known.certificate or 0)))
        transport.abort()
        await until(lambda: not running.bookie.server.sessions)
        case.refused()
        await network.connect("127.0.0.1", running.port, asyncio.Protocol)
        await until(lambda: bool(len(log)))
        (event,) = case.refused()
        assert event.action == "login"
        assert "cert:alice" in event.detail


async def test_a_process_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says whose it is; that is noted with what it wanted."""
    monkeypatch.setenv("BUCKRAM_SOCKETS", str(tmp_path / "sockets"))
    log = AuditLog(production_runtime().clock, NullStats())
    async with guarded(tmp_path, auth=AUTH, events=log) as running:
        case = Case(running, log)
        monkeypatch.setattr("buckram.bookie.service.security.connection_gate._user_of", lambda transport: 12_345)
        wire = Wire(*await asyncio.open_unix_connection(local_sockets.name_of("127.0.0.1", running.port)), 3)
        wire.send(GetBookieInfo())
        await wire.frame()
        (event,) = case.refused()
        assert event.peer == "a client of this machine, of user 12345"
        assert os.getuid() != 12_345
        await wire.close()


async def test_nothing_is_noted_where_nothing_is_refused(case: Case) -> None:
    running = case.running
    await prepared(running)
    await grant(running, "token:ann", "shop", {"read", "append"})
    case.refused()
    async with client_of(running, "ann") as ann:
        async with ann.namespace("shop").writer("orders") as writer:
            await writer.append(b"more")
        assert (await ann.namespace("shop").get("orders", 3)).value == b"more"
    assert case.refused() == []
