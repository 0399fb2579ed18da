"""The clients of a bookie's HTTP API: connected when the first request needs the cluster.

Where peers have to log in, a request reaches other bookies with the token that it brought, and with nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace

from buckram.client.ledger_client import LedgerClient, connecting
from buckram.config import TlsConfig
from buckram.errors import BuckramError
from buckram.runtime.process.handle_cache import BorrowedHandle, HandleCache
from buckram.serve.admin.routing import RequestError

CONNECT_S = 15.0
MOST_CLIENTS = 8
"""Limit of open clients; those beyond it are open only while requests or jobs use them."""
IDLE_S = 60.0
TOKEN: ContextVar[str] = ContextVar("token", default="")
"""The token of the request that is served; empty without logins."""
_BORROWED: ContextVar[list[BorrowedHandle[LedgerClient]]] = ContextVar("borrowed")


class ClusterLink:
    """Clients of the cluster, one for each token. Requests use `client()` within `request()`, jobs use `lasting()`."""

    def __init__(self, metadata_uri: str, tls: TlsConfig) -> None:
        """`tls`: the bookie's. Its certificate is one of servers, and is not shown to other bookies."""
        self._uri, self._tls = metadata_uri, replace(tls, certificate="", key="")
        self._clients: HandleCache[LedgerClient] = HandleCache(
            "clients of the cluster", self._open, LedgerClient.close, lambda client: False,
            idle_s=IDLE_S, most_open=MOST_CLIENTS,
        )  # fmt: skip

    @contextmanager
    def request(self) -> Iterator[None]:
        """Keep the clients that `client()` returns open during the block."""
        borrowed: list[BorrowedHandle[LedgerClient]] = []
        before = _BORROWED.set(borrowed)
        try:
            yield
        finally:
            _BORROWED.reset(before)
            for one in borrowed:
                one.give()

    async def client(self) -> LedgerClient:
        """Return the client of the request that is served. Raises RequestError (503) while the cluster cannot be
        reached.
        """
        found = await self._take()
        _BORROWED.get().append(found)
        return found.item

    @asynccontextmanager
    async def lasting(self) -> AsyncIterator[LedgerClient]:
        """Yield the client of the request that began this job. Raises RequestError like `client`."""
        found = await self._take()
        try:
            yield found.item
        finally:
            found.give()

    async def close(self) -> None:
        await self._clients.close()

    async def _take(self) -> BorrowedHandle[LedgerClient]:
        # A name of a client stands in logs, so it is not the token.
        name = hashlib.sha256(TOKEN.get().encode()).hexdigest()[:16]
        try:
            return await self._clients.take(name)
        except (BuckramError, OSError, TimeoutError) as error:
            raise RequestError(503, f"the metadata store cannot be asked now: {error or 'no answer'}") from None

    async def _open(self, name: str) -> LedgerClient:
        async with asyncio.timeout(CONNECT_S):
            return await connecting(LedgerClient, self._uri, tls=self._tls, token=TOKEN.get())
