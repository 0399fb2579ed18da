"""The databases of a server: those named at its start are always open, those of namespaces are opened on request.

Not here: opening few of many (`state/db/opening.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buckram.addresses import read_address
from buckram.cluster import Client
from buckram.core.streams.names import check_name, stream_name
from buckram.errors import (
    InvalidArgument,
    NoSuchDatabase,
    NoSuchNamespace,
    NoSuchStream,
    NotDatabase,
    NotMachineLog,
)
from buckram.seams import MetadataStore
from buckram.serve.http.problems import HttpProblem, refusing
from buckram.state.db.database import Database
from buckram.state.db.opening import Shelf, Use
from buckram.state.db.settings import DatabaseLimits

IDLE_S = 300.0
Sees = Callable[[str], bool]
"""Returns whether the client has any permission on a database, by its full name, or on a namespace."""
_GONE = (NoSuchDatabase, NoSuchNamespace, NoSuchStream, NotDatabase, NotMachineLog)


class Databases:
    """Opens and keeps databases. `close` closes them all; a leader steps down after what is in flight."""

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        namespaces: Sequence[str],
        *,
        announce: str,
        limits: DatabaseLimits | None = None,
        idle_s: float = IDLE_S,
        most_open: int = 200,
        everything: bool = False,
    ) -> None:
        """`idle_s`, `most_open`: of the databases of namespaces. `everything`: those of all namespaces are served."""
        self.names = tuple(dict.fromkeys(str(stream_name(name)) for name in names))
        self.namespaces = tuple(dict.fromkeys(check_name("namespace", name) for name in namespaces))
        self._everything = everything
        if not self.names and not self.namespaces and not everything:
            raise InvalidArgument("no database is named; name some, or a namespace")
        self._client, self.announce, self._limits = client, announce, limits
        self._shelf = Shelf(self._opened, idle_s=idle_s, most_open=most_open + len(self.names))
        self._named = frozenset(self.names)
        self._kept: dict[str, Use] = {}
        """The databases named at the start, which stay in use until `close`."""

    @property
    def store(self) -> MetadataStore:
        """The metadata store of the cluster that holds these databases."""
        return self._client.services.store

    @property
    def history_mark(self) -> str:
        """The mark of the metadata's history that all replicas here belong to (as of Identities)."""
        return self._client.services.identities.history_mark

    async def start(self) -> None:
        """Open the databases that were named; they are made if they do not exist."""
        for name in self.names:
            await self.get(name)

    def opened(self) -> dict[str, Database]:
        """Those that are open now, by name."""
        return dict(sorted(self._shelf.opened().items()))

    def find(self, wanted: str, host: str, sees: Sees = lambda name: True) -> str:
        """Return the full name of the database that a request means: the one it names, else the one of the host's
        name.

        The host of database shop/main is main.shop.ANYTHING. If only one is served, none needs to be named. Raises
        HttpProblem, which is the same for a database that the client may not see and for one that does not exist.
        """
        meant = "" if wanted else self._meant(host)
        wanted = wanted or (meant if meant and sees(meant) else "")
        if not wanted:
            raise HttpProblem(
                404,
                "NO_DATABASE",
                "the request names no database: put NAMESPACE/DATABASE before the path, as in /shop/main/v3/pipeline, "
                f"or into the header Buckram-Database; served here: {self.described(sees)}",
            )
        try:
            name = stream_name(wanted)
        except InvalidArgument as error:
            raise HttpProblem(404, "NO_DATABASE", str(error)) from None
        if not sees(str(name)):
            raise refusing(_not_served(str(name), str(NoSuchDatabase(str(name)))))
        if not self._everything and str(name) not in self.names and name.namespace not in self.namespaces:
            raise _not_served(str(name), f"it is not served here: {self.described(sees)}")
        return str(name)

    def _meant(self, host: str) -> str:
        """The database of a request that names none; empty for none."""
        by_host = self._by_host(found.host.lower() if (found := read_address(host)) else "")
        return by_host or (self.names[0] if len(self.names) == 1 and not self.namespaces else "")

    def _by_host(self, host: str) -> str:
        for name in self.names:
            if host.startswith(f"{_host_prefix(name)}."):
                return name
        labels = host.split(".")
        return f"{labels[1]}/{labels[0]}" if len(labels) > 2 and labels[1] in self.namespaces else ""

    def described(self, sees: Sees = lambda name: True) -> str:
        """Return which databases are served and may be seen, as text for an error."""
        everything = ["all databases of the cluster"] if self._everything else []
        namespaces = [f"all of namespace {name}" for name in self.namespaces if sees(name)]
        return ", ".join([*everything, *filter(sees, self.names), *namespaces]) or "nothing that you may use"

    async def take(self, name: str) -> Use:
        """The database, open until `give` of the value is called; one that stopped is opened again. HttpProblem 404."""
        try:
            use = await self._shelf.take(name)
            if use.database.role == "stopped":
                use.give()
                use = await self._shelf.take(name)
        except _GONE as error:
            raise _not_served(name, str(error)) from None
        if name in self._named:
            await self._keep(name, use.database)
        return use

    async def get(self, name: str) -> Database:
        """The database, which may be closed later if it is one of a namespace."""
        use = await self.take(name)
        use.give()
        return use.database

    async def _keep(self, name: str, database: Database) -> None:
        kept = self._kept.get(name)
        if kept is not None and kept.database is database:
            return
        use = await self._shelf.take(name)
        before, self._kept[name] = self._kept.get(name), use
        if before is not None:
            before.give()

    async def _opened(self, name: str) -> Database:
        full = stream_name(name)
        database = await self._client.namespace(full.namespace).database(
            full.stream, announce=self.announce, limits=self._limits, create=name in self.names
        )
        database.show(self.announce)
        return database

    async def close(self) -> None:
        """Close all."""
        kept, self._kept = list(self._kept.values()), {}
        for use in kept:
            use.give()
        await self._shelf.close()


def _host_prefix(name: str) -> str:
    namespace, _, database = name.lower().partition("/")
    return f"{database}.{namespace}"


def _not_served(name: str, why: str) -> HttpProblem:
    return HttpProblem(404, "NO_SUCH_DATABASE", f"database {name}: {why}", value=name)
