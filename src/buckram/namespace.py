"""Namespace: the handle from `client.namespace(name)`. Its streams, and access to its machines and databases.

The operations on streams are in `streams/namespace.py`; the others call `machine` and `db`, which stand on them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from buckram.client.shared.handles import Opening
from buckram.core.streams.names import stream_name
from buckram.state.db.settings import check_engine
from buckram.streams.namespace import StreamNamespace
from buckram.streams.read.reader import Time, microseconds

# What only some programs use is imported when they use it: a command is to start quickly.
if TYPE_CHECKING:
    from buckram.core.db.changes import Change
    from buckram.state.db.database import Database
    from buckram.state.db.settings import DatabaseLimits
    from buckram.state.db.transfer import Verified
    from buckram.state.machine.machine import Machine, StateMachine
    from buckram.state.machine.settings import MachineSettings

M = TypeVar("M", bound="StateMachine")


class Namespace(StreamNamespace):
    """A namespace of streams, machines and databases. Names may be given alone or as NAMESPACE/NAME of this one."""

    def machine(
        self,
        name: str,
        factory: Callable[[], M],
        *,
        create: bool = True,
        stand: bool = True,
        process: str = "",
        settings: MachineSettings | None = None,
        **policy: Any,
    ) -> Opening[Machine[M]]:
        """Open a replicated state machine: `async with ns.machine("inventory", Inventory) as m`, or await it.

        `factory` makes the state (a class with apply, snapshot and restore, see StateMachine in
        `state/machine/machine.py`). Its log is a stream of this name; `create` makes it, with `policy`. `stand`: become
        the leader whenever there is none; without it only by `m.lead()`. `process`: the name of this process that
        others see when it leads, default HOST:PID. Errors: NoSuchStream, NotMachineLog, StateLost.
        """
        from buckram.state.machine.opening import open_machine
        from buckram.state.machine.settings import MachineSettings

        full = self._name(name)
        return Opening(
            lambda: open_machine(
                self._client,
                self,
                full,
                factory,
                create=create,
                stand=stand,
                process=process,
                settings=settings or MachineSettings(),
                policy=policy,
            ),
            "ns.machine()",
        )

    def database(
        self,
        name: str,
        *,
        announce: str | None = None,
        limits: DatabaseLimits | None = None,
        create: bool = True,
        stand: bool = True,
        settings: MachineSettings | None = None,
        directory: str | None = None,
        **policy: Any,
    ) -> Opening[Database]:
        """Open a replicated SQL database: `async with ns.database("main") as db`, or await it.

        Its log is a stream of this name; `create` makes it, with `policy`. `announce`: the name of this process that
        others see when it leads (a server's address), default HOST:PID. `stand`: become the leader whenever there is
        none; without it only by `db.lead()`. `directory`: where the local files are, which are removed when it is
        closed; default that of temporary files. Errors: NoSuchNamespace, NoSuchDatabase, NotDatabase, StateLost,
        MissingEngine.
        """
        check_engine()
        from buckram.state.db.opening import open_database

        full = self._name(name)
        return Opening(
            lambda: open_database(
                self._client,
                self,
                full,
                create=create,
                stand=stand,
                announce=announce or "",
                limits=limits,
                settings=settings,
                directory=None if directory is None else Path(directory),
                policy=policy,
            ),
            "ns.database()",
        )

    async def fork_database(
        self, source: str, name: str, *, offset: int | None = None, time: Time | None = None, **policy: Any
    ) -> int:
        """Make the database `name` of an earlier state of `source` (NAMESPACE/DATABASE of any namespace).

        The state is that below `offset` of its log, or of what was committed before `time`; without both, the newest.
        Returns the offset. Raises NoEarlierState, NotDatabase, and DatabaseExists unless nothing is in the
        one that is there.
        """
        check_engine()
        from buckram.state.db.transfer import fork

        full = stream_name(source, self.name)
        moment = None if time is None else microseconds(time)
        return await fork(self._client, self, full, self._name(name), offset=offset, time_us=moment, policy=policy)

    async def create_database(self, name: str, *, cdc: bool = False, **policy: Any) -> None:
        """Create an empty database without opening it; `policy` is that of its log. Raises DatabaseExists.

        `cdc` (change data capture): its log keeps what transactions do to rows, for `database_changes`.
        """
        check_engine()
        from buckram.state.db.commits.database_log import create_log

        await create_log(self, self._name(name), policy, cdc=cdc)

    def database_changes(
        self, name: str, from_offset: int | None = None, *, follow: bool = False
    ) -> AsyncIterator[Change]:
        """Yield changes of rows by committed transactions, in their order, of a database that was made with `cdc`.

        `async for change in ns.database_changes("main", offset)`: changes at this offset of the log and later; without
        it, all that are kept. `follow`: wait for more at the end. Nothing is opened but the log. Raises ChangesNotKept,
        ChangesGone, NotDatabase, NoSuchStream.
        """
        check_engine()
        from buckram.state.db.commits.changes import read_changes

        return read_changes(self._client, self, self._name(name), from_offset, follow)

    async def backup_database(
        self, name: str, path: str, *, offset: int | None = None, time: Time | None = None
    ) -> tuple[int, int]:
        """Write a database into a file of SQLite's, as it was below an offset or before a moment.

        Without both, the newest state. Returns the offset, and the bytes of the file. Raises NoEarlierState,
        NotDatabase, OSError.
        """
        check_engine()
        from buckram.state.db.transfer import backup

        moment = None if time is None else microseconds(time)
        return await backup(self._client, self, self._name(name), Path(path), offset=offset, time_us=moment)

    async def restore_database(self, path: str, name: str, **policy: Any) -> None:
        """Make the database `name` of a file of SQLite's, or fill the one that is there and has nothing in it.

        Raises DatabaseExists, InvalidArgument, OSError.
        """
        check_engine()
        from buckram.state.db.transfer import restore

        await restore(self._client, self, self._name(name), Path(path), policy)

    async def load_database(self, path: str, name: str) -> int:
        """Fill a database that has nothing in it with a file of SQLite's; returns the bytes of its pages.

        It is empty until all of it is there, and after a failure. Waits until this process leads it. Raises
        NoSuchDatabase, DatabaseNotEmpty, DatabaseBusy, InvalidArgument, CommitUnknown, OSError.
        """
        check_engine()
        from buckram.state.db.transfer import load

        async with self.database(name, create=False) as database:
            await database.lead()
            return await load(database, Path(path))

    async def verify_database(self, name: str) -> Verified:
        """Read all that is kept of a database, compare every digest, and return the findings. Raises StateLost,
        NotDatabase.
        """
        check_engine()
        from buckram.state.db.transfer import verify

        return await verify(self._client, self, self._name(name))
