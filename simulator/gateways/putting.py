"""Clients of objects by /v2: put and delete with conditions, get, rename, list, with keys or without, and uploads up
to the quota of the namespace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from simulator.engine.checkers.linearizability import UNKNOWN
from simulator.gateways.asking import GATEWAY, KEY, Answer, Caller, Lost
from simulator.gateways.object_model import ABSENT, CHANGED, EXISTS, FREE, OK, REFUSED
from simulator.gateways.serving import NAMESPACE
from simulator.gateways.stage import Stage

FOLDER = "o"
NAMES = tuple(f"{FOLDER}/{name}" for name in "abc")
_BASE = f"/v2/namespaces/{NAMESPACE}"
_TRIES = 20
_WHY = {404: ABSENT, 409: EXISTS}
Told = Callable[[Answer], Any]


class PutterActor(Caller):
    """One client."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self._tags: dict[str, tuple[str, str]] = {}
        """The ETag and the label of each object that this client saw last."""
        self._uploads: list[int] = []
        self.acts = [
            (8, self._put),
            (3, self._delete),
            (3, self._rename),
            (5, self._get),
            (3, self._list),
            (3, self._begin),
            (2, self._abort),
        ]

    # -- calls --------------------------------------------------------------------------------------------

    def _condition(self, name: str, *, free: bool = True) -> tuple[str, dict[str, str]]:
        """Return a condition for the model, and the headers that say it."""
        kind = self.rng.random()
        if free and kind < 0.3:
            return FREE, {"if-none-match": "*"}
        if kind < 0.6 and name in self._tags:
            tag, label = self._tags[name]
            return label, {"if-match": tag}
        return "", {}

    async def _put(self) -> None:
        name = self.rng.choice(NAMES)
        label, content = self.histories.new_content(self.rng)
        condition, headers = self._condition(name)

        def told(answer: Answer) -> None:
            self._saw(name, f'"{answer.json["version"]}"', label)

        await self._change(("put", name, label, condition), "PUT", f"/objects/{name}", headers, content, told)

    async def _delete(self) -> None:
        name = self.rng.choice(NAMES)
        condition, headers = self._condition(name, free=False)
        await self._change(("delete", name, condition), "DELETE", f"/objects/{name}", headers)

    async def _rename(self) -> None:
        source, name = self.rng.choice(NAMES), self.rng.choice(NAMES)
        free = self.rng.random() < 0.5
        body = json.dumps({"source": source, "name": name, "if_absent": free}).encode()
        operation = ("rename", source, name, FREE if free else "")
        await self._change(operation, "POST", "/rename-object", {"content-type": "application/json"}, body)

    async def _get(self) -> None:
        await self.look(self.rng.choice(NAMES))

    async def look(self, name: str) -> None:
        def told(answer: Answer) -> str:
            label = self.histories.label(answer.body)
            self._saw(name, answer.headers["etag"], label)
            return label

        await self._look(("get", name), f"/objects/{name}", told)

    async def _list(self) -> None:
        after, most = "", self.rng.choice((1, 2, 100))
        while not self.stage.over:
            target = f"/objects?prefix={FOLDER}/&limit={most}{f'&after={after}' if after else ''}"
            found = await self._look(
                ("page", after, most), target, lambda answer: tuple(_name(row) for row in answer.json["objects"])
            )
            if found is None or len(found[1]) < most:
                return
            after = found[1][-1]

    def _saw(self, name: str, tag: str, label: str) -> None:
        """Check that a version is that of one label."""
        known = self.histories.versions.setdefault(tag, label)
        self.world.report.check("objects", known == label, "version {} is {} and {}", tag, known, label)
        self._tags[name] = tag, label

    # -- uploads ------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        most, opened = self.stage.gateways.sizes.uploads, self.stage.uploads
        try:
            answer = await self.asker.ask(self.asker.choose(), "POST", f"{_BASE}/uploads/{self.rng.choice(NAMES)}")
        except Lost:
            return
        if answer.status == 201:
            opened[answer.json["upload"]] = None
            self._uploads.append(answer.json["upload"])
            # Nobody has given those up yet, so all of them are open at this moment.
            self.world.report.check("limit", len(opened) <= most, "uploads {} are open, {} may be", list(opened), most)
        elif answer.status == 429:
            self.world.report.situation("an upload was refused by the quota")

    async def _abort(self) -> None:
        if not self._uploads:
            return
        upload = self._uploads.pop(0)
        self.stage.uploads.pop(upload, None)
        for name in NAMES:  # It does not matter which one it was for: another one refuses, or says that it is gone.
            try:
                await self.asker.ask(self.asker.choose(), "DELETE", f"{_BASE}/uploads/{name}?upload={upload}")
            except Lost:
                return

    # -- asking -------------------------------------------------------------------------------------------

    async def _look(self, operation: tuple[Any, ...], target: str, told: Told) -> tuple[str, Any] | None:
        """Ask until there is an answer."""
        left = _TRIES
        while left or self.stage.healed:
            left -= 1
            began = self.world.loop.time()
            try:
                answer = await self.asker.ask(self.asker.choose(), "GET", f"{_BASE}{target}")
            except Lost:
                answer = None
            if answer is not None and (answer.status == 200 or answer.status in _WHY):
                result = (OK, told(answer)) if answer.status == 200 else (REFUSED, _WHY[answer.status])
                self.histories.objects(self.host, operation, result, began, self.world.loop.time())
                return result if answer.status == 200 else None
            await asyncio.sleep(self.rng.random() * 0.3)
        return None

    async def _change(
        self,
        operation: tuple[Any, ...],
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes = b"",
        told: Told = lambda answer: None,
    ) -> None:
        """Send a change until its outcome is known or in doubt, and record it."""
        keyed = self.rng.random() < 0.5
        self._serial += 1
        key, gateway, began = f"{self.host}-{self._serial}", "", self.world.loop.time()
        meant, doubt, left = "", False, _TRIES
        while left or self.stage.healed:
            left -= 1
            if not doubt:
                gateway = self.asker.choose()
                meant = await self._id_of(gateway) if keyed else ""
                began = self.world.loop.time()
            more = {KEY: key, GATEWAY: meant} if meant else {}
            fate = self._fate(body)
            try:
                answer = await self.asker.ask(
                    gateway, method, f"{_BASE}{target}", headers=headers | more, body=body, fate=fate
                )
            except Lost as lost:
                # A body that was cut leaves nothing.
                doubt = doubt or (lost.sent and fate != "cut")
                if doubt and not meant:
                    break
            else:
                if answer.status == 421:
                    if doubt:
                        break
                elif answer.unknown:
                    self.world.report.situation("an outcome was told as unknown")
                    doubt = True
                    break
                elif (result := self._result(answer, operation, told)) is not None:
                    self.histories.objects(self.host, operation, result, began, self.world.loop.time())
                    return
                else:
                    doubt = False  # It was refused for now, so none of the attempts has changed anything.
            await asyncio.sleep(self.rng.random() * 0.3)
        if doubt:
            self.histories.objects(self.host, operation, UNKNOWN, began, None)

    async def _id_of(self, gateway: str) -> str:
        try:
            answer = await self.asker.ask(gateway, "GET", _BASE, within_s=5.0)
        except Lost:
            return ""
        return answer.headers.get(GATEWAY, "")

    def _fate(self, body: bytes) -> str:
        if self.stage.over or self.rng.random() >= self.stage.gateways.impatience:
            return ""
        return self.rng.choice(("cut", "leave")) if body else "leave"

    def _result(self, answer: Answer, operation: tuple[Any, ...], told: Told) -> tuple[str, Any] | None:
        if answer.status < 300:
            return OK, told(answer)
        self.world.trace.note(self.host, f"{operation}: {answer}")
        if answer.status == 412:
            return REFUSED, EXISTS if operation[-1] == FREE else CHANGED
        if answer.status in _WHY:
            return REFUSED, _WHY[answer.status]
        self.world.report.check("answers", answer.status in (503, 429), "{} is answered {}", operation, answer)
        return None


def _name(row: dict[str, Any]) -> str:
    return str(row["object"]).partition("/")[2]


__all__ = ["NAMES", "PutterActor"]
