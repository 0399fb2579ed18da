"""OpenObjects: the objects of namespaces that a gateway has open. A namespace opens at its first use, closes when
idle.

A read leaves a namespace without objects as it is: only the first put makes its index. Not here: the objects
(`state/objects/objects.py`).
"""

from __future__ import annotations

from contextlib import suppress

from buckram.cluster import Client
from buckram.core.objects.rows import LOG
from buckram.errors import NoSuchStream
from buckram.runtime.process.handle_cache import BorrowedHandle, HandleCache
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.state.objects.objects import Objects


class OpenObjects:
    """The open namespaces of one gateway, for objects and for files (`serve/webhdfs/`). `close` seals what was put."""

    def __init__(self, client: Client, limits: GatewayLimits, sign: str) -> None:
        """Make it for a cluster; `sign`: name of this process for others while it leads an index."""
        self._client, self._sign = client, sign
        self.shelf: HandleCache[Objects] = HandleCache(
            "objects",
            self._open,
            Objects.close,
            lambda objects: objects.ended,
            idle_s=limits.writer_idle_s,
            most_open=limits.object_namespaces,
        )

    @property
    def namespaces(self) -> list[str]:
        """Those that are open now."""
        return self.shelf.names

    async def take(self, namespace: str) -> BorrowedHandle[Objects]:
        """The objects of a namespace, in use until `give` is called. Raises NoSuchNamespace, HandleClosed."""
        return await self.shelf.take(namespace)

    async def found(self, namespace: str) -> BorrowedHandle[Objects] | None:
        """Return the objects of a namespace like `take`; None if none was ever put. Raises NoSuchNamespace,
        HandleClosed.
        """
        if namespace not in self.shelf.names:
            space = self._client.namespace(namespace)
            await self._client.namespaces.get(namespace)
            with suppress(NoSuchStream):
                await space.store.read(space.log_name(LOG))
                return await self.take(namespace)
            return None
        return await self.take(namespace)

    async def close(self) -> None:
        """Close all of them. Idempotent."""
        await self.shelf.close()

    async def _open(self, namespace: str) -> Objects:
        await self._client.namespaces.get(namespace)
        return await self._client.objects(namespace, process=self._sign)


__all__ = ["OpenObjects"]
