"""The other servers of databases: their addresses, and the credentials of a request that is forwarded to one.

A leader's address comes from the lease of a database's log, which whoever may append to the database writes. So it is
used only if a server of the cluster shows it. A forwarded request carries a token of its own, for this one path and
principal, which only servers that open the store directly can make. Not here: sending (`forwarding.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
from urllib.parse import urlsplit

from buckram.core.security.principal import Principal
from buckram.errors import MetadataError
from buckram.metadata.tree.layout import DATABASE_SERVERS
from buckram.seams import MetadataStore
from buckram.serve.http.server_registry import ServerRegistry
from buckram.serve.http.tokens import Vouch

_FRESH_S = 2.0
"""Time for which the list of shown servers is cached, seconds."""


class DatabaseServerRegistry:
    """The registry of database servers, this one included. `own` is the address that it announces.

    `vouch`: makes the header that names the principal of a forwarded request, because the servers require tokens; then
    requests are forwarded only through TLS, or to this machine. None: every client may do everything.
    """

    def __init__(self, store: MetadataStore, own: str, vouch: Vouch | None) -> None:
        self._shown, self._vouch = ServerRegistry(store, DATABASE_SERVERS, own), vouch
        self._known: frozenset[str] = frozenset()
        self._until = 0.0

    async def start(self) -> None:
        """Show this server, before it leads anything."""
        await self._shown.start()

    async def close(self) -> None:
        await self._shown.close()

    async def why_not(self, address: str) -> str:
        """Return why no request may be forwarded to an announced address, as the end of a sentence about it; empty if
        one may.
        """
        if not await self._is_shown(address.rstrip("/")):
            return "is shown by no server of this cluster, and nothing is sent there"
        if self._vouch is not None and not _is_private(address):
            return "has no TLS, and with tokens requests are sent on through TLS only: start it with --tls-cert"
        return ""

    async def headers(self, principal: Principal, path: str) -> dict[str, str]:
        """Return the headers that vouch for the principal of one request to this path. Raises MetadataError."""
        return {} if self._vouch is None else {"authorization": await self._vouch(principal, path)}

    async def _is_shown(self, address: str) -> bool:
        now = asyncio.get_running_loop().time()
        if address not in self._known or now >= self._until:
            try:
                self._known = frozenset(peer.url for peer in await self._shown.shown())
            except MetadataError:
                return False
            self._until = now + _FRESH_S
        return address in self._known


def _is_private(address: str) -> bool:
    """Return whether the way to an address cannot be eavesdropped: through TLS, or on this machine."""
    place = urlsplit(address)
    if place.scheme == "https" or place.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(place.hostname or "").is_loopback
    except ValueError:
        return False


__all__ = ["DatabaseServerRegistry"]
