"""The janitor of `buckram up`: a thread with a loop of its own beside the bookies. It never ends the cluster."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from buckram.cli.options import connected, run_async
from buckram.cli.output import remark
from buckram.errors import BuckramError

if TYPE_CHECKING:
    from buckram.client.client import Client

ORPHANS_S = 600.0
"""Between two looks at every ledger of the cluster."""
STOP_S = 10.0


class JanitorThread:
    """`with JanitorThread(uri, every_s):` cleans again and again. What is put off is said once on standard error."""

    def __init__(self, uri: str, every_s: float) -> None:
        self._uri, self._every_s = uri, every_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready, self._said = threading.Event(), ""
        self._thread = threading.Thread(target=self._main, name="janitor", daemon=True)

    def __enter__(self) -> JanitorThread:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:  # its loop has ended by itself
                return
            self._thread.join(STOP_S)

    def _main(self) -> None:
        try:
            run_async(self._serve())
        except Exception as error:  # whatever it is, the bookies go on
            remark(f"the janitor ended: {error!r}; streams keep their space until one runs: `buckram stream janitor`")
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        stopped = asyncio.ensure_future(self._stop.wait())
        work = asyncio.ensure_future(self._work())
        await asyncio.wait((stopped, work), return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, work):
            task.cancel()
        await asyncio.wait((stopped, work))
        if not work.cancelled():
            work.result()

    async def _work(self) -> None:
        while True:
            try:
                async with connected(self._uri) as client:
                    await self._clean(client)
            except BuckramError as error:
                self._say(str(error))
            await asyncio.sleep(self._every_s)

    async def _clean(self, client: Client) -> None:
        from buckram.streams.maintain.janitor import Janitor

        loop, worker = asyncio.get_running_loop(), Janitor(client)
        looked = loop.time()
        while True:
            orphans = loop.time() - looked > ORPHANS_S
            looked = loop.time() if orphans else looked
            report = await worker.clean(orphans=orphans)
            self._say("; ".join(report.problems[:3]))
            await asyncio.sleep(self._every_s)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            remark(f"janitor: put off: {trouble}")
        self._said = trouble
