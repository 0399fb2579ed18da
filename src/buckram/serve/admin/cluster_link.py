"""The clients of a bookie's HTTP API: connected when the first request needs the cluster.

Where peers have to log in, a request reaches other bookies with the token that it brought, and with nothing else.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import replace

from buckram.client.ledger_client import LedgerClient, connecting
from buckram.config import TlsConfig
from buckram.errors import BuckramError
from buckram.serve.admin.routing import RequestError

CONNECT_S = 15.0
MOST_CLIENTS = 8
TOKEN: ContextVar[str] = ContextVar("token", default="")
"""The token of the request that is served; empty without logins."""


class ClusterLink:
    """Clients of the cluster, one for each token: `client()` returns that of the request being served."""

    def __init__(self, metadata_uri: str, tls: TlsConfig) -> None:
        """`tls`: the bookie's. Its certificate is one of servers, and is not shown to other bookies."""
        self._uri, self._tls = metadata_uri, replace(tls, certificate="", key="")
        self._clients: dict[str, LedgerClient] = {}
        self._one_at_a_time = asyncio.Lock()

    async def client(self) -> LedgerClient:
        """Raises Wrong (503) while the cluster cannot be reached, and for one token too many."""
        token = TOKEN.get()
        async with self._one_at_a_time:
            found = self._clients.get(token)
            if found is not None:
                return found
            if len(self._clients) >= MOST_CLIENTS:
                raise RequestError(
                    503, f"{MOST_CLIENTS} tokens were used since the start, which is the limit: use one again"
                )
            try:
                async with asyncio.timeout(CONNECT_S):
                    self._clients[token] = found = await connecting(LedgerClient, self._uri, tls=self._tls, token=token)
            except (BuckramError, OSError, TimeoutError) as error:
                raise RequestError(503, f"the metadata store cannot be asked now: {error or 'no answer'}") from None
            return found

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
