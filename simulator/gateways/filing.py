"""Clients of WebHDFS: they create, read, rename, delete and list files, as Hadoop's client does or as Spark's relay.

Hadoop's client takes a lost answer as it is. The relay (`spark/relay/server.py`) repeats the request at another gateway
with marks, so that its own first attempt is no conflict. Each request is a call of the history that `file_model.py`
explains; one without an answer took effect at any time, or never, and one whose body was cut never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from simulator.engine.checkers.linearizability import UNKNOWN
from simulator.gateways.asking import REDIRECTS, Answer, Caller, Lost, place_of
from simulator.gateways.file_model import OK, REFUSED, parent_of
from simulator.gateways.histories import FILE_GROUPS
from simulator.gateways.serving import NAMESPACE
from simulator.gateways.stage import Stage

_RETRIED = ("StandbyException", "RetriableException")
"""Errors after which a client asks again: the outcome is unknown."""
_LOOKS = ("status", "read", "page")
_TRIES = 20


class Request(NamedTuple):
    """One request of WebHDFS."""

    method: str
    path: str
    op: str
    parameters: dict[str, str]
    body: bytes = b""


def _nothing(answer: Answer) -> None:
    """The answer to a call that tells nothing but its success."""


class FilerActor(Caller):
    """One client."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.relays = self.rng.random() < 0.5
        """True if it marks repetitions, as the relay does."""
        self.acts = [
            (12, self._create),
            (2, self._mkdirs),
            (3, self._delete),
            (4, self._rename),
            (4, self._move),
            (4, self._status),
            (4, self._read),
            (4, self._list),
        ]

    def _path(self, group: str = "", *, directory: float = 0.2) -> str:
        """Return a path in a group: with chance `directory` that of a directory, but any of them may be either."""
        rng, group = self.rng, group or self.rng.choice(FILE_GROUPS)
        name = f"d{rng.randrange(2)}" if rng.random() < directory else f"x{rng.randrange(2)}"
        return f"{group}/d{rng.randrange(2)}/{name}" if rng.random() < 0.3 else f"{group}/{name}"

    # -- calls --------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        path, overwrite = self._path(directory=0.1), self.rng.random() < 0.5
        label, content = self.histories.new_content(self.rng)
        self._serial += 1
        attempt = f"{self.host}-{self._serial}" if self.relays else ""
        parameters = {"overwrite": "true" if overwrite else "false"}
        request = Request("PUT", path, "CREATE", parameters, content)
        await self._until_known(
            ("create", path, label, overwrite, attempt), request, _nothing, {"buckram-attempt": attempt}
        )

    async def _mkdirs(self) -> None:
        path = self._path(directory=1.0)
        await self._until_known(("mkdirs", path), Request("PUT", path, "MKDIRS", {}), _boolean)

    async def _delete(self) -> None:
        path, recursive = self._path(directory=0.4), self.rng.random() < 0.5
        request = Request("DELETE", path, "DELETE", {"recursive": str(recursive).lower()})
        await self._until_known(("delete", path, recursive), request, _boolean, marked=True)

    def _two_paths(self) -> tuple[str, str, dict[str, str]]:
        group, directory = self.rng.choice(FILE_GROUPS), self.rng.choice((0.0, 0.0, 1.0))
        source, target = (
            self._path(group, directory=directory),
            self._path(group, directory=self.rng.choice((directory, 0.5))),
        )
        return source, target, {"destination": f"/{NAMESPACE}/{target}"}

    async def _rename(self) -> None:
        source, target, parameters = self._two_paths()
        overwrite = self.rng.random() < 0.5
        parameters["renameoptions"] = "OVERWRITE" if overwrite else "NONE"
        request = Request("PUT", source, "RENAME", parameters)
        await self._until_known(("rename", source, target, overwrite), request, _nothing, marked=True)

    async def _move(self) -> None:
        source, target, parameters = self._two_paths()
        await self._until_known(
            ("move", source, target), Request("PUT", source, "RENAME", parameters), _boolean, marked=True
        )

    async def _status(self) -> None:
        await self.look(self._path())

    async def look(self, path: str) -> None:
        await self._until_known(("status", path), Request("GET", path, "GETFILESTATUS", {}), _status_of)

    async def _read(self) -> None:
        path = self._path(directory=0.1)
        await self._until_known(
            ("read", path), Request("GET", path, "OPEN", {}), lambda answer: self.histories.label(answer.body)
        )

    async def _list(self) -> None:
        """List a directory page by page, as clients of large ones do, or as a whole if it is one page."""
        path = self.rng.choice((self.rng.choice(FILE_GROUPS), self._path(directory=1.0)))
        most, after = self.stage.gateways.sizes.listed, ""
        while not self.stage.over:
            request = Request("GET", path, "LISTSTATUS_BATCH", {"startAfter": after} if after else {})
            found = await self._until_known(("page", path, after, most), request, _page_of)
            if not found or found[0] != OK or len(found[1]) < most or not found[1][-1][0]:
                return
            self.world.report.situation("a directory was listed in pages")
            after = found[1][-1][0]

    # -- asking -------------------------------------------------------------------------------------------

    async def _until_known(
        self,
        operation: tuple[Any, ...],
        request: Request,
        read: Callable[[Answer], Any],
        headers: dict[str, str] | None = None,
        *,
        marked: bool = False,
    ) -> tuple[str, Any] | None:
        """Send a request until its outcome is known; return that. `marked`: the operation knows its repetitions."""
        headers, repeated = {name: value for name, value in (headers or {}).items() if value}, False
        looks = operation[0] in _LOOKS
        left = _TRIES
        while left or self.stage.healed:
            left -= 1
            began = self.world.loop.time()
            more = (repeated,) if marked else ()
            marks = {"buckram-repeated": "true"} if repeated and self.relays else {}
            carried = request.op == "CREATE" and (repeated or self.rng.random() < 0.3)
            outcome = await self._ask(request, headers | marks, read, carried=carried)
            if outcome is not None:
                result, whole = outcome
                if not looks or result is not UNKNOWN:
                    self._record((*operation, *more), result, began, whole=whole)
                if isinstance(result, tuple):
                    return result
                if not looks and not self.relays:
                    return None
                if repeated := self.relays and not looks:
                    self.world.report.situation("a call on files was repeated with its marks")
            await asyncio.sleep(self.rng.random() * 0.3)
        return None

    def _record(self, operation: tuple[Any, ...], result: Any, began: float, *, whole: bool) -> None:
        """Record a call, and the directory that a create makes before it has the bytes."""
        ended = None if result is UNKNOWN else self.world.loop.time()
        if operation[0] == "create":
            self.histories.files(
                self.host, ("keep", parent_of(operation[1])), (OK, None) if ended else UNKNOWN, began, ended
            )
        if whole:
            self.histories.files(self.host, operation, result, began, ended)

    async def _ask(
        self, request: Request, headers: dict[str, str], read: Callable[[Answer], Any], *, carried: bool
    ) -> tuple[Any, bool] | None:
        """Return the result, and whether the request was whole; None for one that surely was not carried out.

        `carried`: the second step of a CREATE, which has the bytes, is sent alone, as the relay does to repeat it, and
        other clients always do.
        """
        query = urlencode({"op": request.op, **request.parameters})
        gateway, target = self.asker.choose(), f"/webhdfs/v1/{NAMESPACE}/{request.path}?{query}"
        fate = self._fate(request)
        target += "&data=true" if carried else ""
        try:
            for _ in range(REDIRECTS):
                last = carried or request.op not in ("CREATE", "OPEN")
                answer = await self.asker.ask(
                    gateway,
                    request.method,
                    target,
                    headers=headers,
                    body=request.body if carried else b"",
                    fate=fate if last else "",
                )
                if answer.status != 307:
                    break
                (gateway, target), carried = place_of(answer.headers["location"]), True
        except Lost as lost:
            if not lost.sent or (request.op == "CREATE" and not carried):
                return None
            return UNKNOWN, fate != "cut"
        return self._result(request, answer, read), True

    def _fate(self, request: Request) -> str:
        if self.stage.over or self.rng.random() >= self.stage.gateways.impatience:
            return ""
        return self.rng.choice(("cut", "leave")) if request.body else "leave"

    def _result(self, request: Request, answer: Answer, read: Callable[[Answer], Any]) -> Any:
        if answer.status < 300:
            return OK, read(answer)
        self.world.trace.note(self.host, f"{request.op} {request.path}: {answer}")
        try:
            kind = answer.json["RemoteException"]["exception"]
        except (ValueError, KeyError, TypeError):
            self.world.report.check("answers", answer.status == 503, "{} is answered {}", request, answer)
            return UNKNOWN
        return UNKNOWN if kind in _RETRIED else (REFUSED, kind)


def _label_of(row: Mapping[str, Any]) -> str:
    return "/" if row["type"] == "DIRECTORY" else str(row["length"])


def _status_of(answer: Answer) -> str:
    return _label_of(answer.json["FileStatus"])


def _page_of(answer: Answer) -> tuple[tuple[str, str], ...]:
    rows = answer.json["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]
    return tuple((row["pathSuffix"], _label_of(row)) for row in rows)


def _boolean(answer: Answer) -> bool:
    return bool(answer.json["boolean"])


__all__ = ["FilerActor"]
