"""The client of a bookie's HTTP API: connected when the first request needs the cluster, and again after a failure."""

from __future__ import annotations

import asyncio

from buckram.admin.routing import Wrong
from buckram.client.client import Client, connect
from buckram.errors import BuckramError

CONNECT_S = 15.0


class ClusterLink:
    """`client()` gives the one client of this process's pages."""

    def __init__(self, metadata_uri: str) -> None:
        self._uri = metadata_uri
        self._client: Client | None = None
        self._one_at_a_time = asyncio.Lock()

    async def client(self) -> Client:
        """Raises Wrong (503) while the cluster cannot be reached."""
        async with self._one_at_a_time:
            if self._client is None:
                try:
                    async with asyncio.timeout(CONNECT_S):
                        self._client = await connect(self._uri)
                except (BuckramError, OSError, TimeoutError) as error:
                    raise Wrong(503, f"the metadata store cannot be asked now: {error or 'no answer'}") from None
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
