"""Calls of one putter on objects, each with its record in the history, and what its errors mean.

Not here: which calls are made, and when (`putters.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from buckram.errors import (
    BuckramError,
    DataLost,
    DirectoryNotEmpty,
    NameBlocked,
    NoSuchObject,
    ObjectChanged,
    ObjectDamaged,
    ObjectExists,
    UploadIncomplete,
)
from buckram.state.objects.objects import ObjectInfo, Objects
from simulator.objects.histories import Asked, summed
from simulator.objects.model import ABSENT, BLOCKED, CHANGED, EXISTS, FILLED, INCOMPLETE, LOST
from simulator.objects.rules import OK, REFUSED, SLACK_US
from simulator.objects.stage import Begun, Stage

T = TypeVar("T")
Condition = str | int | None
KINDS: dict[type[BuckramError], str] = {
    NoSuchObject: ABSENT,
    NameBlocked: BLOCKED,
    ObjectChanged: CHANGED,
    ObjectExists: EXISTS,
    DirectoryNotEmpty: FILLED,
    UploadIncomplete: INCOMPLETE,
    DataLost: LOST,
}
"""Errors that are the answer of the index: nothing was changed."""


def _when(condition: Condition) -> dict[str, Any]:
    return {"if_absent": True} if condition == ABSENT else {"if_match": condition}


class Calls:
    """The calls of one host. They are made in its process, on the handle of the moment."""

    def __init__(self, stage: Stage, host: str, rng: random.Random) -> None:
        self.stage, self.world, self.rules, self.host, self.rng = stage, stage.world, stage.rules, host, rng
        self.handle: Objects
        self._serial = 0

    def label(self) -> str:
        self._serial += 1
        return f"{self.host}.{self._serial}"

    async def _told(self, asked: Asked, work: Awaitable[T]) -> T | None:
        """Await a call; return None if it was refused or its outcome is unknown. The caller records a result."""
        try:
            return await work
        except tuple(KINDS) as error:
            kind = KINDS[type(error)]
            self._note_refusal(kind)
            self.rules.answered(asked, REFUSED, kind)
            if kind == LOST:
                self.failed(asked.verb, error)
        except BuckramError as error:
            self.failed(asked.verb, error)
        return None

    def failed(self, what: str, error: BuckramError) -> None:
        """Note an error that is no answer of the index: it breaks a rule where nothing is wrong."""
        self.world.trace.note(self.host, f"{what}: {error!r}")
        if self.stage.objects.calm:
            self.rules.report.check("ends", False, "{} of {} fails although all is well: {!r}", what, self.host, error)

    def _note_refusal(self, kind: str) -> None:
        if kind in (CHANGED, EXISTS):
            self.rules.report.situation("a condition was refused")
        elif kind == BLOCKED:
            self.rules.report.situation("a name was blocked")

    async def _change(self, asked: Asked, work: Awaitable[object]) -> None:
        """Make a change whose result tells nothing."""

        async def done() -> bool:
            await work
            return True

        if await self._told(asked, done()):
            self.rules.answered(asked, OK, None)

    def _saw(self, asked: Asked, info: ObjectInfo) -> None:
        self.stage.seen[info.name] = info.version
        self.rules.answered(asked, OK, info.version)

    # -- changes --------------------------------------------------------------------------------------------

    async def pieces(self, data: bytes, *, slow: bool) -> AsyncIterator[bytes]:
        """Yield data in pieces, with time between them if it is slow."""
        at = 0
        while at < len(data):
            size = self.rng.choice((10, 40, 150))
            yield data[at : at + size]
            at += size
            if slow:
                await asyncio.sleep(self.rng.random() * 0.3)

    async def put(self, name: str, size: int, condition: Condition, *, how: str) -> None:
        """Put an object of new bytes: "whole", "pieces" or "slow"."""
        label = self.label()
        data = self.rules.contents.make(label, size)
        asked = self.rules.ask(self.host, name, "put", name, label, condition)
        given = data if how == "whole" else self.pieces(data, slow=how == "slow")
        work = self.handle.put(name, given, metadata={"id": label}, **_when(condition))
        info = await self._told(asked, work)
        if info is not None:
            self._saw(asked, info)
            if size > self.stage.objects.sizes.small:
                self.rules.report.situation("a large object was put")

    async def copy(self, source: str, name: str, condition: Condition) -> None:
        asked = self.rules.ask(self.host, source, "copy", source, name, condition)
        info = await self._told(asked, self.handle.copy(source, name, **_when(condition)))
        if info is not None:
            self._saw(asked, info)

    async def rename(self, source: str, name: str, condition: Condition) -> None:
        asked = self.rules.ask(self.host, source, "rename", source, name, condition)
        await self._change(asked, self.handle.rename(source, name, if_absent=condition == ABSENT))

    async def delete(self, name: str, version: int | None) -> None:
        asked = self.rules.ask(self.host, name, "delete", name, version)
        await self._change(asked, self.handle.delete(name, if_match=version))

    async def remove(self, path: str, recursive: bool) -> None:
        asked = self.rules.ask(self.host, path, "remove", path, recursive)
        await self._change(asked, self.handle.remove(path, recursive=recursive))

    async def mkdirs(self, path: str) -> None:
        asked = self.rules.ask(self.host, path, "mkdirs", path)
        made = await self._told(asked, self.handle.mkdirs(path))
        if made is not None:
            self.rules.answered(asked, OK, made)

    # -- uploads --------------------------------------------------------------------------------------------

    async def begin_upload(self, name: str) -> None:
        asked = self.rules.ask(self.host, name, "upload", name)
        number = await self._told(asked, self.handle.begin_upload(name))
        if number is not None:
            self.rules.answered(asked, OK, number)
            self.stage.uploads.append(Begun(number, name, self.host))

    async def put_part(self, begun: Begun, number: int, size: int) -> None:
        label = self.label()
        data = self.rules.contents.make(label, size)
        asked = self.rules.ask(self.host, begun.name, "part", begun.number, number, label)
        given = data if self.rng.random() < 0.5 else self.pieces(data, slow=self.rng.random() < 0.5)
        await self._change(asked, self.handle.put_part(begun.number, number, given))

    async def complete(self, begun: Begun, parts: int, condition: Condition) -> None:
        label = self.label()
        asked = self.rules.ask(self.host, begun.name, "complete", begun.number, parts, label, condition)
        work = self.handle.complete_upload(begun.number, parts, metadata={"id": label}, **_when(condition))
        info = await self._told(asked, work)
        if info is not None:
            self._saw(asked, info)
            if begun.host != self.host:
                self.rules.report.situation("an upload was completed by another process")

    async def abort(self, begun: Begun) -> None:
        asked = self.rules.ask(self.host, begun.name, "abort", begun.number)
        await self._change(asked, self.handle.abort_upload(begun.number))

    # -- reads ----------------------------------------------------------------------------------------------

    async def info(self, name: str) -> None:
        asked = self.rules.ask(self.host, name, "info", name)
        found = await self._told(asked, self.handle.info(name))
        if found is not None:
            self.stage.seen[name] = found.version
            self.rules.answered(asked, OK, (found.metadata.get("id"), found.size, found.digest, found.version))

    async def list(self, group: str) -> None:
        asked = self.rules.ask(self.host, group, "list", f"{group}/")
        found = await self._told(asked, self.handle.list(prefix=f"{group}/"))
        if found is not None:
            rows = tuple((one.name, one.metadata.get("id"), one.version) for one in found)
            self.rules.answered(asked, OK, rows)

    async def get(self, name: str, start: int, length: int | None, *, slow: bool = False) -> None:
        asked = self.rules.ask(self.host, name, "get", name, start, length)
        read = await self._told(asked, self._read(asked, name, start, length, slow))
        if read is None:
            return
        info, data = read
        label = info.metadata.get("id", "")
        if self.rules.contents.knows(label):
            stop = None if length is None else start + length
            wanted = self.rules.contents.of((label,))[start:stop]
            self.rules.report.check(
                "bytes", data == wanted, "{} reads {!r} of {}, which has {!r}", self.host, data, label, wanted
            )
        self.rules.answered(asked, OK, (label, info.version, summed(data)))

    async def _read(
        self, asked: Asked, name: str, start: int, length: int | None, slow: bool
    ) -> tuple[ObjectInfo, bytes] | None:
        """Return an object's information and bytes; None if bytes were gone, as a sweep has deleted them."""
        try:
            info, pieces = await self.handle.reading(name, start=start, length=length)
            found = []
            async with aclosing(pieces):
                async for piece in pieces:
                    found.append(piece)
                    if slow:
                        await asyncio.sleep(self.rng.random() * 0.3)
        except ObjectDamaged as error:
            allowed = self.rules.deleted_since(asked.began) and "are gone" in str(error)
            self.rules.report.check("damaged", allowed, "{} cannot read {}: {}", self.host, name, error)
            self.rules.report.situation("a read met a ledger that was deleted")
            return None
        return info, b"".join(found)

    # -- what expires ---------------------------------------------------------------------------------------

    async def put_brief(self, size: int, age_s: float) -> None:
        """Put an object that expires, under a name that nothing else gets."""
        label, began = self.label(), self.rules.true_us()
        name = f"brief/{label}"
        data = self.rules.contents.make(label, size)
        try:
            await self.handle.put(name, data, metadata={"id": label}, expires_s=age_s)
        except BuckramError as error:
            self.failed("put", error)
            return
        self.rules.due[name] = began + int(age_s * 1e6)

    async def look_brief(self) -> None:
        """Check that an object that expires is there before its time."""
        if not self.rules.due:
            return
        name = self.rng.choice(list(self.rules.due))
        try:
            await self.handle.info(name)
        except NoSuchObject:
            early = self.rules.due[name] - self.rules.true_us()
            self.rules.report.check("early", early <= SLACK_US, "{} is gone {} s early", name, early // 1_000_000)
        except BuckramError as error:
            self.failed("info", error)
        else:
            self.rules.report.check("early", True)


__all__ = ["Calls", "Condition"]
