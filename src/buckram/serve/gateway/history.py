"""History: samples of the cluster in the last hour, for plots. Each gateway keeps its own, since its start."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from buckram.cluster import Client
from buckram.errors import BuckramError
from buckram.metadata.records.tenants import TenantStore
from buckram.metadata.records.underreplication import Underreplication
from buckram.runtime.process.tasks import TaskScope

EVERY_S, KEPT = 10.0, 360
_MOST_MARKS = 1000
"""Marks of ledgers that are counted: more are as bad."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment, by the newest figures of its bookies. `under_replicated` is at most 1,000."""

    time_us: int
    stored_bytes: int
    in_bytes_per_s: float
    out_bytes_per_s: float
    under_replicated: int


class History:
    """The history of one gateway. `start` and `close`; while the metadata store is away no samples are taken."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._scope = TaskScope("history")

    def start(self) -> None:
        """Sample from now on."""
        self._scope.keep(self._keep, "keep")

    async def close(self) -> None:
        """Sample no more. Idempotent."""
        await self._scope.close()

    def as_json(self) -> list[dict[str, Any]]:
        """The samples, the oldest first."""
        return [asdict(one) for one in self._samples]

    async def take(self) -> None:
        """Take a sample now. Raises MetadataUnavailable."""
        store = self._client.services.store
        tenants, tree = TenantStore(store), Underreplication(store.keys, store.root, "")
        total = (await tenants.published()).total.values()
        marks = 0
        async for _ in tree.marked():
            marks += 1
            if marks == _MOST_MARKS:
                break
        self._samples.append(
            Sample(
                self._client.services.runtime.clock.wall_us(),
                sum(one.stored_bytes for one in total),
                sum(one.in_bytes_per_s for one in total),
                sum(one.out_bytes_per_s for one in total),
                marks,
            )
        )

    async def _keep(self) -> None:
        while True:
            with suppress(BuckramError):
                await self.take()
            await asyncio.sleep(EVERY_S)


__all__ = ["History"]
