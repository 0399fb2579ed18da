"""Gateways of one cluster: each shows its address by an ephemeral key, and finds another one by a stream's lease.

Clients are only ever redirected to an address that is shown there, whatever a lease contains. Not here: the lease
itself (`streams/write/lease.py`), the redirect (`dispatch.py`).
"""

from __future__ import annotations

import re

from buckram.metadata.tree.layout import GATEWAYS
from buckram.seams import MetadataStore
from buckram.serve.http.server_registry import Peer, ServerRegistry

_SIGN = re.compile(r"gateway-([0-9a-f]{12})\b.*")


class Peers(ServerRegistry):
    """Entry of this gateway among the gateways, and access to the others'. `start` makes it, `close` removes it."""

    def __init__(self, store: MetadataStore, url: str) -> None:
        super().__init__(store, GATEWAYS, url)
        self.sign = f"gateway-{self.me.id} at {url}"[:200]
        """Name of this gateway in the leases of its writers."""

    async def url_of(self, sign: str) -> str | None:
        """The URL of the gateway that made a lease's sign or a ledger's mark, if it is another one and is shown now."""
        found = _SIGN.fullmatch(sign)
        if found is None or found[1] == self.me.id:
            return None
        return await self.url_of_id(found[1])


def is_gateway(sign: str) -> bool:
    """Return whether a lease was taken by a gateway, which may be gone."""
    return _SIGN.fullmatch(sign) is not None


__all__ = ["Peer", "Peers", "is_gateway"]
