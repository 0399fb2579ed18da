"""OpenObjects: the objects of namespaces that a gateway has open. One opens at its first use, and closes when idle.

A namespace without objects stays one until somebody puts the first. Not here: the objects (`state/objects/objects.py`).
"""

from __future__ import annotations

from contextlib import suppress

from buckram.cluster import Client
from buckram.core.objects.rows import LOG
from buckram.errors import NoSuchStream
from buckram.runtime.net.shelf import Shelf, Use
from buckram.serve.gateway.limits import GatewayLimits
from buckram.state.objects.objects import Objects


class OpenObjects:
    """All of one gateway, as objects and as files (`serve/webhdfs/`). `close` seals what was put."""

    def __init__(self, client: Client, limits: GatewayLimits, sign: str) -> None:
        """`sign`: what others see of this process while it leads an index."""
        self._client, self._sign = client, sign
        self.shelf: Shelf[Objects] = Shelf(
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

    async def take(self, namespace: str) -> Use[Objects]:
        """The objects of a namespace, in use until `give` is called. Raises NoSuchNamespace, HandleClosed."""
        return await self.shelf.take(namespace)

    async def found(self, namespace: str) -> Use[Objects] | None:
        """The same; None where nobody has put an object yet. Raises NoSuchNamespace, HandleClosed."""
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
