"""The databases of a server: those that it was told to serve, opened at once, and those of namespaces, when asked for.

A database of a namespace that nobody asks for is not open: it costs no ledger, no lease and no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from buckram.client.client import Client
from buckram.core.streams.names import StreamName, check_name, stream_name
from buckram.db.database import Database
from buckram.db.settings import DatabaseLimits
from buckram.errors import BuckramError, InvalidArgument, NoSuchDatabase, NoSuchNamespace, NoSuchStream, NotMachineLog
from buckram.http.problems import HttpProblem
from buckram.net.tasks import TaskScope

_log = logging.getLogger("buckram.hrana")
_GONE = (NoSuchDatabase, NoSuchNamespace, NoSuchStream, NotMachineLog)


class Databases:
    """Opens and keeps databases. `close` closes them all."""

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        namespaces: Sequence[str],
        *,
        announce: str,
        limits: DatabaseLimits | None = None,
        idle_s: float = 300.0,
    ) -> None:
        self.names = tuple(dict.fromkeys(str(stream_name(name)) for name in names))
        self.namespaces = tuple(dict.fromkeys(check_name("namespace", name) for name in namespaces))
        if not self.names and not self.namespaces:
            raise InvalidArgument("no database is named; name some, or a namespace")
        self._client, self._announce, self._limits, self._idle_s = client, announce, limits, idle_s
        self._open: dict[str, asyncio.Task[Database]] = {}
        self._users: dict[str, int] = {}
        self._last_use: dict[str, float] = {}
        self._closing = TaskScope("closing databases")
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the databases that were named; they are made if they do not exist."""
        await asyncio.gather(*(self.get(name) for name in self.names))
        self._look()

    def opened(self) -> dict[str, Database]:
        """Those that are open now, by name."""
        return {
            name: task.result()
            for name, task in sorted(self._open.items())
            if task.done() and not task.cancelled() and task.exception() is None
        }

    def find(self, wanted: str, host: str) -> str:
        """The full name of the database that a request means: the one it names, else that of the host's name.

        The host of database shop/main is main.shop.ANYTHING. If only one is served, none needs to be named. Raises
        HttpProblem.
        """
        wanted = wanted or self._by_host(host.partition(":")[0].lower())
        if not wanted and len(self.names) == 1 and not self.namespaces:
            wanted = self.names[0]
        if not wanted:
            raise HttpProblem(
                404,
                "NO_DATABASE",
                "the request names no database: put NAMESPACE/DATABASE before the path, as in /shop/main/v3/pipeline, "
                f"or into the header Buckram-Database; served here: {self.described()}",
            )
        try:
            name = stream_name(wanted)
        except InvalidArgument as error:
            raise HttpProblem(404, "NO_DATABASE", str(error)) from None
        if str(name) not in self.names and name.namespace not in self.namespaces:
            raise _not_served(str(name), f"it is not served here: {self.described()}")
        return str(name)

    def _by_host(self, host: str) -> str:
        for name in self.names:
            if host.startswith(f"{_host_prefix(name)}."):
                return name
        labels = host.split(".")
        return f"{labels[1]}/{labels[0]}" if len(labels) > 2 and labels[1] in self.namespaces else ""

    def described(self) -> str:
        """What is served, for people."""
        return ", ".join([*self.names, *(f"all of namespace {name}" for name in self.namespaces)])

    async def get(self, name: str) -> Database:
        """The open database; one that stopped is opened again. Raises HttpProblem 404, and errors of opening."""
        task = self._open.get(name)
        if task is not None and task.done():
            failed = task.cancelled() or task.exception() is not None
            if failed or task.result().role == "stopped":
                if not failed:
                    _log.warning("database %s stopped here; it is opened again", name)
                    self._closing.spawn(task.result().aclose(), f"stopped {name}")
                task = None
        if task is None:
            task = self._open[name] = asyncio.create_task(self._opened(stream_name(name)), name=f"open {name}")
        self._last_use[name] = asyncio.get_running_loop().time()
        try:
            return await asyncio.shield(task)
        except _GONE as error:
            self._forget(name, task)
            raise _not_served(name, str(error)) from None
        except BuckramError:
            self._forget(name, task)
            raise

    def begin_use(self, name: str) -> None:
        """A request or a stream needs the database: it is not closed for being idle."""
        self._users[name] = self._users.get(name, 0) + 1

    def end_use(self, name: str) -> None:
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]
            self._last_use[name] = asyncio.get_running_loop().time()

    async def _opened(self, name: StreamName) -> Database:
        return await self._client.namespace(name.namespace).database(
            name.stream, announce=self._announce, limits=self._limits, create=str(name) in self.names
        )

    def _forget(self, name: str, task: asyncio.Task[Database]) -> None:
        if self._open.get(name) is task:
            del self._open[name]
            self._last_use.pop(name, None)

    def _look(self) -> None:
        """Close databases of namespaces that nobody has used for a time."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._idle_s / 10, self._look)
        for name, database in self.opened().items():
            last = self._last_use.get(name, 0.0)
            if name not in self.names and name not in self._users and last + self._idle_s <= loop.time():
                self._forget(name, self._open[name])
                self._closing.spawn(database.aclose(), f"idle {name}")

    async def close(self) -> None:
        """Close all; a leader steps down after what is in flight."""
        if self._timer is not None:
            self._timer.cancel()
        tasks, self._open = list(self._open.values()), {}
        for task in tasks:
            if not task.done():
                task.cancel()
        opened = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.aclose() for one in opened if isinstance(one, Database)))
        await self._closing.close()


def _host_prefix(name: str) -> str:
    namespace, _, database = name.lower().partition("/")
    return f"{database}.{namespace}"


def _not_served(name: str, why: str) -> HttpProblem:
    return HttpProblem(404, "NO_SUCH_DATABASE", f"database {name}: {why}", value=name)


__all__ = ["Databases"]
