"""A writer of ours that goes on in the background until it is fenced, and waiting for what others do meanwhile."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from tests.interop.clusters import payload
from tests.support.polling import answered

from buckram.client.write.writer import Writer
from buckram.errors import LedgerClosed, LedgerFenced

T = TypeVar("T")
DEADLINE_S = 40.0


class LiveWriter:
    """Appends payload(0), payload(1), ... one after another. `acknowledged` is the last that was; -1 before."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.acknowledged, self.stop = writer, -1, False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while not self.stop:
            self.acknowledged = await self.writer.append(payload(self.acknowledged + 1))

    async def reached(self, entry: int) -> None:
        """Wait until `entry` is acknowledged. Raises the writer's error if it failed."""

        async def there() -> bool:
            if self._task.done():
                self._task.result()
            return self.acknowledged >= entry

        await answered(there)

    async def fenced(self) -> None:
        """Wait until a recovery by another client has fenced the writer."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                await self._task
            except (LedgerFenced, LedgerClosed):
                await self.writer.abandon()
            else:
                raise AssertionError("the writer was not fenced")
