"""A bookie with clients and namespaces, for tests of quotas; time passes as tests let it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.bookie_kit import KEY, Kit, ledger_metadata, running
from tests.support.polling import until

from buckram import connect
from buckram.bookie.accounting.namespace_usage import Accounting
from buckram.bookie.service.rate_limiter import RateLimiter
from buckram.bookie.service.tenant import Tenant
from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.config import ClientConfig

QUIET = ClientConfig(local_read_bytes=0, idle_lac_ms=0)


@dataclass
class Tenants:
    """One bookie, and a client of it."""

    kit: Kit
    client: Client

    @property
    def accounting(self) -> Accounting:
        assert self.kit.bookie.accounting is not None
        return self.kit.bookie.accounting

    @property
    def limiter(self) -> RateLimiter:
        assert self.kit.bookie.server.limiter is not None
        return self.kit.bookie.server.limiter

    def tenant(self, namespace: str) -> Tenant:
        return self.limiter.tenant(namespace)

    async def limit(self, namespace: str, **quotas: int | None) -> None:
        """Set quotas; they are in force when it returns."""
        wanted = await self.client.namespaces.set_quotas(namespace, **quotas)
        before = self.accounting.rounds
        self.accounting._changed.set()
        await until(lambda: self.accounting.rounds > before and self.accounting.quotas.get(namespace, wanted) == wanted)
        await until(lambda: self.limiter.active)

    async def writer(self, namespace: str) -> Writer:
        return await self.client.create(ensemble=1, custom_metadata={"buckram.namespace": namespace})


async def connected_ledger(kit: Kit, namespace: str) -> tuple[int, bytes]:
    """A ledger of a namespace in metadata, for tests that speak frames, and its master key."""
    metadata = ledger_metadata([kit.id])
    metadata = replace(metadata, custom_metadata={"buckram.namespace": namespace.encode()})
    await kit.metadata.create_ledger(900, metadata)
    return 900, KEY


@asynccontextmanager
async def tenants(directory: Path, *names: str, **options: Any) -> AsyncIterator[Tenants]:
    """A bookie with these namespaces."""
    async with (
        running(directory, admission="known", **options) as kit,
        connect(kit.metadata, config=QUIET) as client,
    ):
        for name in names:
            await client.namespaces.create(name, ensemble="1/1/1")
        yield Tenants(kit, client)
