"""Listening at names that have several addresses, or one address twice, and at IPv6."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from buckram.runtime.net.tcp import TcpNetwork

HAS_IPV6 = True
try:
    with socket.socket(socket.AF_INET6) as _probe:
        _probe.bind(("::1", 0))
except OSError:
    HAS_IPV6 = False
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no ::1")
V4: Any = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
V6: Any = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
NOT_HERE: Any = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))


def resolves_to(monkeypatch: pytest.MonkeyPatch, *infos: Any) -> None:
    async def found(host: str, port: int, **options: object) -> list[Any]:
        return [(*info[:4], (info[4][0], port, *info[4][2:])) for info in infos]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found, raising=False)


async def reachable(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def test_one_address_twice_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, V4, V4)
    listener = await TcpNetwork(local=False).listen("twice", 0, asyncio.Protocol)
    again = listener.port
    await listener.close()
    fixed = await TcpNetwork(local=False).listen("twice", again, asyncio.Protocol)
    monkeypatch.undo()
    assert await reachable("127.0.0.1", fixed.port)
    await fixed.close()


@needs_ipv6
async def test_both_families_have_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, V6, V4, V6)
    listener = await TcpNetwork(local=False).listen("both", 0, asyncio.Protocol)
    monkeypatch.undo()
    assert await reachable("127.0.0.1", listener.port)
    assert await reachable("::1", listener.port)
    await listener.close()
    assert not await reachable("::1", listener.port)


async def test_an_address_that_is_not_here_beside_one_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, NOT_HERE, V4)
    listener = await TcpNetwork(local=False).listen("half", 0, asyncio.Protocol)
    await listener.close()
    resolves_to(monkeypatch, NOT_HERE)
    with pytest.raises(OSError, match="not an address of this machine") as refused:
        await TcpNetwork(local=False).listen("nowhere", 0, asyncio.Protocol)
    assert refused.value.errno == errno.EADDRNOTAVAIL


@needs_ipv6
async def test_ipv6_alone() -> None:
    listener = await TcpNetwork(local=False).listen("::1", 0, asyncio.Protocol)
    with pytest.raises(OSError, match=rf"cannot listen at \[::1\]:{listener.port}: the address is in use"):
        await TcpNetwork(local=False).listen("::1", listener.port, asyncio.Protocol)
    transport, _ = await TcpNetwork(local=False).connect("::1", listener.port, asyncio.Protocol)
    transport.close()
    await listener.close()
