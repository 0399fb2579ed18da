"""A process that puts objects until it is killed. `python writing_process.py URI WHAT`; a line says how far it is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from buckram import connect
from buckram.state.objects.writing import LedgerMaker

MIB = 1024 * 1024


async def _forever(said: str) -> AsyncIterator[bytes]:
    """Some pieces, and then none for ever."""
    for _ in range(4):
        yield bytes(MIB)
    print(said, flush=True)
    await asyncio.Event().wait()


async def main(uri: str, what: str) -> None:
    async with connect(uri) as client, client.objects("shop") as objects:
        await objects.put("kept", b"kept")
        if what == "large":
            await objects.put("large", _forever("writing"))
        elif what == "part":
            upload = await objects.begin_upload("large")
            await objects.put_part(upload, 0, bytes(2 * MIB))
            print(upload, flush=True)
            await objects.put_part(upload, 1, _forever("writing"))
        elif what == "pack":
            await objects._packs.put(b"bytes of nobody" * 1000)
            print("written", flush=True)
        elif what == "unknown":
            # It dies between making a ledger and telling the index.
            async def begin(self: LedgerMaker, ledger: int) -> bool:
                print("made", flush=True)
                await asyncio.Event().wait()
                return True

            LedgerMaker._begin = begin  # type: ignore[method-assign]
            await objects.put("large", bytes(2 * MIB))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
