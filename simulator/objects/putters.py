"""Putters: processes that put, change and read objects; some die, some calls are cancelled, some sweep."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from buckram.cluster import Client
from buckram.errors import BuckramError, HandleClosed, ReplicaStopped
from buckram.state.objects.objects import Objects
from simulator.engine.world import Died
from simulator.objects.calls import Calls, Condition
from simulator.objects.model import ABSENT
from simulator.objects.rules import AT_ONCE_S, NAMESPACE
from simulator.objects.stage import Begun, Stage

_NO_CRASH = 1 << 60
_GROUPS = ("g0", "g1")
_AGES_S = (600.0, 1500.0, 5400.0)
Act = Callable[[], Awaitable[None]]


class PutterActor:
    """One host with an open handle, which is opened again after its process died."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.host = stage, stage.world, host
        self.rng = random.Random(f"{stage.objects.seed} objects {host}")
        self.aim = random.Random(f"{stage.objects.seed} aimed {host}")
        self.calls = Calls(stage, host, self.rng)
        self.left = stage.objects.acts
        self.done = asyncio.Event()
        """Set when all acts are over."""
        self._sweeping = False
        plan = stage.objects
        self._acts: list[tuple[float, Act]] = [
            (10, self._put),
            (4, self._copy),
            (4, self._rename),
            (4, self._rename_directory),
            (5, self._delete),
            (1, self._remove),
            (1, self._mkdirs),
            (3, self._begin_upload),
            (7, self._put_part),
            (4, self._complete),
            (1, self._abort),
            (3, self._info),
            (10, self._get),
            (3, self._list),
            (2, self._brief),
            (1, self.calls.look_brief),
            (3 if plan.at_once else 0, self._sweep),
            (6 if plan.aimed else 0, self._replace_moved),
            (4 if plan.aimed else 0, self._brief),
            (8 if plan.aimed else 0, self.calls.look_brief),
        ]

    async def run(self) -> None:
        while not self.stage.finished:
            try:
                client = await self.world.client(self.host)
                await self.world.join(self.world.processes[self.host], self._live(client), "putter")
            except Died:
                self.world.report.situation(f"a process died in {'a sweep' if self._sweeping else 'a call'}")
            except BuckramError as error:
                self.world.trace.note(self.host, f"ends: {error!r}")
            self.stage.open.pop(self.host, None)
            self._sweeping = False
            await asyncio.sleep(self.rng.random() * 0.5)

    async def _live(self, client: Client) -> None:
        try:
            plan = self.stage.objects
            opened = client.objects(NAMESPACE, process=self.host, settings=plan.settings, **plan.policy)
            async with opened as handle:
                self.stage.open[self.host] = self.calls.handle = handle
                await self._act(handle)
                self.stage.open.pop(self.host, None)
        finally:
            await client.close()

    async def _act(self, handle: Objects) -> None:
        """Make calls until all are made, then stay until the life ends; return early if the handle has ended."""
        process, plan = self.world.processes[self.host], self.stage.objects
        while self.left and not self.stage.over and not handle.ended:
            self.left -= 1
            if self.rng.random() < plan.crashing:
                process.crash_after(int(self.rng.random() ** 2 * 400))
            acts = [self._chosen() for _ in range(self.rng.choice((1, 2, 3, 5)))]
            await asyncio.gather(*map(self._cancelled if self.rng.random() < plan.cancelling else self._whole, acts))
            process.crash_after(_NO_CRASH)
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.02, 0.3, 0.8)))
        self.done.set()
        while not self.stage.finished and not handle.ended:  # noqa: ASYNC110 - a handle ends without an event
            await asyncio.sleep(0.1)

    def _chosen(self) -> Act:
        weights, acts = zip(*self._acts, strict=True)
        act: Act = self.rng.choices(acts, weights)[0]
        return act

    async def _whole(self, act: Act) -> None:
        try:
            await act()
        except (HandleClosed, ReplicaStopped) as error:
            self.calls.failed("a call", error)

    async def _cancelled(self, act: Act) -> None:
        """Cancel a call after some turns of its process, or some time, unless it ends before."""
        call = asyncio.create_task(self._whole(act))
        turns = self.rng.choice((0, int(self.rng.random() ** 2 * 200), -1))
        if self.stage.objects.aimed and self.aim.random() < 0.6:
            await self._until_begun(call)
        else:
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns < 0:
                await asyncio.wait((call,), timeout=self.rng.random() * 0.5)
        if not call.done():
            call.cancel()
            self.world.report.situation("a put was cancelled")
        await asyncio.wait((call,))
        if not call.cancelled():
            call.result()

    async def _until_begun(self, call: asyncio.Task[None]) -> None:
        """Wait until the call has begun a ledger, if it does, and then for part of the time in which it is written."""
        rules, loop = self.stage.rules, self.world.loop
        before, limit = rules.begun, loop.time() + self.aim.choice((0.02, 0.1, 2.0))
        while not call.done() and rules.begun == before and loop.time() < limit:  # noqa: ASYNC110 - as ledgers begin
            await asyncio.sleep(0.002)
        await asyncio.wait((call,), timeout=self.aim.random() ** 2 * 0.4)

    # -- choices --------------------------------------------------------------------------------------------

    def _directory(self) -> str:
        group = self.rng.choice(_GROUPS)
        return group + self.rng.choice(("", "/d", "/d", "/e", "/d/f"))

    def _name(self, group: str = "") -> str:
        directory = self._directory()
        if group:
            directory = group + directory.removeprefix(directory.partition("/")[0])
        return f"{directory}/{self.rng.choice('abcdefgh'[: self.stage.objects.names])}"

    def _there(self) -> str:
        """Return the name of an object that somebody was told of, as a rule."""
        known = list(self.stage.rules.reference.rows)
        names = [name for name in known if name.startswith(_GROUPS)]
        return self.rng.choice(names) if names and self.rng.random() < 0.8 else self._name()

    def _condition(self, name: str) -> Condition:
        return self.rng.choice((None, None, ABSENT, self.stage.seen.get(name)))

    def _size(self) -> int:
        sizes = self.stage.objects.sizes
        small, large = self.rng.randrange(sizes.small + 1), sizes.small + self.rng.randrange(6 * sizes.chunk)
        return self.rng.choice((0, 1, small, small, small, large, large))

    # -- acts -----------------------------------------------------------------------------------------------

    async def _put(self) -> None:
        name = self._name()
        how = self.rng.choice(("whole", "whole", "whole", "pieces", "slow"))
        await self.calls.put(name, self._size(), self._condition(name), how=how)

    async def _copy(self) -> None:
        source = self._there()
        name = self._name(source.partition("/")[0])
        await self.calls.copy(source, name, self._condition(name))

    async def _rename(self) -> None:
        source = self._there()
        await self.calls.rename(source, self._name(source.partition("/")[0]), self.rng.choice((None, ABSENT)))

    async def _rename_directory(self) -> None:
        group = self.rng.choice(_GROUPS)
        source, name = self.rng.choice((("d", "e"), ("e", "d"), ("d", "x"), ("x", "d"), ("d/f", "f"), ("d", "d/g")))
        await self.calls.rename(f"{group}/{source}", f"{group}/{name}", None)

    async def _delete(self) -> None:
        name = self._there()
        await self.calls.delete(name, self.rng.choice((None, None, self.stage.seen.get(name))))

    async def _remove(self) -> None:
        group = self.rng.choice(_GROUPS)
        await self.calls.remove(f"{group}/{self.rng.choice(('d', 'e', 'x', 'd/f'))}", self.rng.random() < 0.7)

    async def _mkdirs(self) -> None:
        await self.calls.mkdirs(f"{self.rng.choice(_GROUPS)}/{self.rng.choice(('d', 'd/f', 'e', 'x'))}")

    async def _begin_upload(self) -> None:
        await self.calls.begin_upload(self._name())

    def _upload(self) -> Begun | None:
        return self.rng.choice(self.stage.uploads[-6:]) if self.stage.uploads else None

    async def _put_part(self) -> None:
        begun = self._upload()
        if begun is not None:
            await self.calls.put_part(begun, self.rng.choice((0, 0, 1, 1, 2)), self._size())

    async def _complete(self) -> None:
        begun = self._upload()
        if begun is not None:
            upload = self.stage.rules.reference.uploads.get(begun.number)
            parts = len(upload.parts) if upload is not None and self.rng.random() < 0.9 else 1
            await self.calls.complete(begun, max(parts, 1), self._condition(begun.name))

    async def _abort(self) -> None:
        begun = self._upload()
        if begun is not None:
            await self.calls.abort(begun)

    async def _info(self) -> None:
        await self.calls.info(self._there())

    async def _get(self) -> None:
        name = self._there()
        if self.rng.random() < 0.5:
            await self.calls.get(name, 0, None, slow=self.rng.random() < 0.6)
        else:
            most = 3 * self.stage.objects.sizes.chunk
            start, length = self.rng.randrange(most), self.rng.choice((None, self.rng.randrange(most)))
            await self.calls.get(name, start, length, slow=self.rng.random() < 0.6)

    async def _list(self) -> None:
        await self.calls.list(self.rng.choice(_GROUPS))

    async def _brief(self) -> None:
        await self.calls.put_brief(self._size(), self.rng.choice(_AGES_S))

    async def _replace_moved(self) -> None:
        """Sweep at once, which rewrites sparse packs, and put other objects in the place of some in packs meanwhile."""
        rows = self.stage.rules.reference.rows
        packed = [
            name for name, row in rows.items() if name.startswith(_GROUPS) and any(not e.chunk for e in row.extents)
        ]
        names = self.aim.sample(packed, min(len(packed), 6))

        async def replace(name: str) -> None:
            await asyncio.sleep(self.aim.random() ** 2 * 0.2)
            size = self.aim.randrange(self.stage.objects.sizes.small + 1)
            await self.calls.put(name, size, None, how="whole")

        await asyncio.gather(self.sweep(), *map(replace, names))

    async def _sweep(self) -> None:
        await self.sweep(self.rng.choice((0.0, 0.0, 1.0)))

    async def sweep(self, grace_s: float = 0.0) -> None:
        """Sweep at once; deletions may arrive for some time after it."""
        rules, loop = self.stage.rules, self.world.loop
        self._sweeping = True
        rules.at_once_until = float("inf")
        try:
            await self.calls.handle.sweep(grace_s=grace_s)
        except BuckramError as error:
            self.calls.failed("sweep", error)
        finally:
            self._sweeping = False
            rules.at_once_until = loop.time() + AT_ONCE_S


__all__ = ["PutterActor"]
