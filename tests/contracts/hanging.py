"""A connection to a metadata store whose process hangs once, while others go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.types import KeyOp


class Hanging(MemoryKeys):
    """Before or after its change number `at`, counted from 1, it hangs until `meanwhile` is done; `hung` says whether
    it did."""

    def __init__(self, tree: MemoryTree, at: int, meanwhile: Callable[[], Awaitable[None]], *, after: bool) -> None:
        super().__init__(tree)
        self._left, self._meanwhile, self._after = at, meanwhile, after
        self.hung = False

    async def _apply(self, op: KeyOp) -> int:
        await self._hang(False)
        version = await super()._apply(op)
        await self._hang(True)
        return version

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        await self._hang(False)
        await super().multi(ops)
        await self._hang(True)

    async def _hang(self, after: bool) -> None:
        if after is self._after:
            self._left -= 1
            if self._left == 0:
                self.hung = True
                await self._meanwhile()
