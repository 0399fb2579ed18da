"""Connections that have not logged in: idle ones keep nobody out, and those that speak leave a share to others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.secure_kit import Files, Guarded, guarded

from buckram import connect
from buckram.bookie.service.security import connection_gate as unknown
from buckram.bookie.service.security.connection_gate import MOST_OF_ADDRESS, MOST_UNKNOWN, counted_address
from buckram.config import AuthConfig, ClientConfig, TlsConfig
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.messages import GetBookieInfo, StartTls

TOKENS = AuthConfig(logins="token")
START_TLS = wire_v3.encode_request(StartTls(), 1)


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through them the kernel says who it is."""
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("unknown"))


@asynccontextmanager
async def peers(
    port: int, count: int, says: bytes = b"", near: str = "127.0.0.1"
) -> AsyncIterator[list[socket.socket]]:
    """Connections from one address that say this and nothing more."""
    loop, made = asyncio.get_running_loop(), list[socket.socket]()
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.bind((near, 0))
            await loop.sock_connect(one, ("127.0.0.1", port))
            if says:
                await loop.sock_sendall(one, says)
            made.append(one)
        yield made


def waiting(running: Guarded) -> int:
    door = running.bookie.server._door
    assert door is not None
    return len(door.unknown)


def heard(running: Guarded) -> int:
    return sum(session.heard for session in running.bookie.server.sessions)


async def logs_in(running: Guarded, token: str, tls: TlsConfig | None = None) -> None:
    transport, _ = await running.network(tls, token).connect("127.0.0.1", running.port, asyncio.Protocol)
    transport.abort()


@pytest.mark.parametrize("count", [256, 1000])
@pytest.mark.parametrize("secured", [False, True])
async def test_idle_connections_keep_nobody_out(tmp_path: Path, files: Files, count: int, secured: bool) -> None:
    tls = files.bookie if secured else None
    async with guarded(tmp_path, tls, TOKENS) as running:
        token = await running.token()
        async with peers(running.port, count):
            await until(lambda: waiting(running) == MOST_OF_ADDRESS)
            async with asyncio.timeout(2.0):
                for _ in range(5):
                    await logs_in(running, token, files.client if secured else None)
        assert waiting(running) <= MOST_OF_ADDRESS


async def test_a_bookie_that_is_full_of_idle_connections_takes_whoever_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = await running.token()
        monkeypatch.setattr(running.bookie.server, "_most", 20)
        async with peers(running.port, 40):
            await until(lambda: waiting(running) == 20)
            async with asyncio.timeout(2.0):
                await logs_in(running, token)


async def test_whoever_is_silent_goes_before_whoever_speaks_slowly(tmp_path: Path) -> None:
    async with guarded(tmp_path, auth=TOKENS) as running:
        hello = wire_v3.encode_request(GetBookieInfo(1), 7)
        async with peers(running.port, 1) as silent, peers(running.port, 1, hello[:3]) as speaks:
            await until(lambda: waiting(running) == 2 and heard(running) == 1)
            await pass_time(3.1)
            assert await ended(silent[0])
            assert waiting(running) == 1
            await pass_time(6.0)
            assert waiting(running) == 1
            await pass_time(1.0)
            assert await ended(speaks[0])
        assert waiting(running) == 0


async def ended(peer: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(peer, 1) == b""
    return True


@pytest.mark.parametrize("says", [b"", START_TLS, START_TLS[:5]], ids=["nothing", "asks", "part"])
async def test_tls_has_to_begin_soon(tmp_path: Path, files: Files, says: bytes) -> None:
    async with guarded(tmp_path, files.bookie, TOKENS) as running, peers(running.port, 1, says):
        await until(lambda: waiting(running) == 1 and heard(running) == bool(says))
        await pass_time(3.1)
        await until(lambda: waiting(running) == 0, seconds=3.0)


async def test_a_handshake_that_began_has_the_time_of_a_login(tmp_path: Path, files: Files) -> None:
    async with guarded(tmp_path, files.bookie, TOKENS) as running, peers(running.port, 1, b"\x16\x03\x01"):
        await until(lambda: heard(running) == 1)
        await pass_time(9.5)
        assert waiting(running) == 1
        await pass_time(0.6)
        await until(lambda: waiting(running) == 0)


async def test_addresses_that_fill_the_table_leave_a_share_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them speak, and none logs in."""
    monkeypatch.setattr(unknown, "MOST_UNKNOWN", 8)
    monkeypatch.setattr(unknown, "MOST_OF_ADDRESS", 4)
    async with guarded(tmp_path, auth=TOKENS) as running:
        token = await running.token()
        known = [
            (await running.network(token=token).connect("127.0.0.1", running.port, asyncio.Protocol))[0]
            for _ in range(10)
        ]
        async with (
            peers(running.port, 6, b"\0\0", "127.0.0.2"),
            peers(running.port, 6, b"\0\0", "127.0.0.3"),
        ):
            await until(lambda: waiting(running) == 8 and heard(running) == 18)
            async with asyncio.timeout(2.0):
                await logs_in(running, token)
            assert waiting(running) >= 7
        assert not any(one.is_closing() for one in known)
        for one in known:
            one.abort()


def test_an_address_is_a_machine() -> None:
    assert counted_address(("10.0.0.1", 5)) == counted_address(("::ffff:10.0.0.1", 6, 0, 0)) == "10.0.0.1"
    assert counted_address(("2001:db8::1", 5, 0, 0)) == counted_address(("2001:db8::2", 5, 0, 0))
    assert counted_address(("2001:db8:0:1::1", 5, 0, 0)) != counted_address(("2001:db8::1", 5, 0, 0))
    assert counted_address(("fe80::1%eth0", 5, 0, 2)) == "fe80::/64"
    assert counted_address("") == counted_address(None) == ""
    assert MOST_OF_ADDRESS < MOST_UNKNOWN


@pytest.mark.parametrize("mode", ["off", "optional"])
async def test_without_logins_whoever_says_nothing_stays(tmp_path: Path, files: Files, mode: str) -> None:
    """Apache's clients open connections before they have something to ask, and keep them."""
    tls = replace(files.bookie, mode=mode) if mode != "off" else None
    async with guarded(tmp_path, tls) as running, peers(running.port, 600):
        await until(lambda: len(running.bookie.server.sessions) == 600)
        await pass_time(30.0)
        assert len(running.bookie.server.sessions) == 600
        assert waiting(running) == 0


async def test_who_has_logged_in_may_be_idle(tmp_path: Path, files: Files) -> None:
    async with guarded(tmp_path, files.bookie, TOKENS) as running:
        token, config = await running.token(), ClientConfig(local_read_bytes=0)
        async with connect(running.service, tls=files.client, token=token, config=config) as client:
            async with client.create(ensemble=1) as writer:
                await writer.append(b"x")
            before = dict(running.bookie.server.sessions)
            await pass_time(20.0)
            async with client.open(writer.ledger_id) as reader:
                assert await reader.read_payloads(0, 0) == [b"x"]
            assert list(running.bookie.server.sessions)[: len(before)] == list(before)
