"""Databases as files over the network: sends a backup as a file of SQLite's, and fills an empty database from one.

A backup has everything that was committed before the request, whichever server gets it. Only the leader loads a file:
another server answers with its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response

from buckram.core.tenants.fair_share import holder_of
from buckram.errors import DatabaseNotEmpty
from buckram.serve.hrana.databases import Databases
from buckram.serve.hrana.forwarding import Forwarder
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.targets import Reading
from buckram.serve.http.application import Principal
from buckram.serve.http.problems import HttpProblem, json_answer, redirect
from buckram.serve.http.spooled_files import SQLITE, Folder, Transfers, file_answer, kept
from buckram.state.db.transfer import load

BACKUP, LOAD = "backup", "load"
"""GET /DATABASE/backup and PUT /DATABASE/load."""


class Exchange:
    """Backups and loads of the databases of a server."""

    def __init__(self, databases: Databases, forwarder: Forwarder, limits: HranaLimits, offset: str) -> None:
        """Make it for these databases; `offset`: name of the header for the offset of a state."""
        self._databases, self._forwarder = databases, forwarder
        self._limits, self._offset = limits, offset
        self._transfers = Transfers("backups and loads", limits.transfers, option="transfers", do="try later")

    async def backup(self, reading: Reading, principal: Principal, over: Callable[[], str]) -> Response:
        """Return a file with everything that was committed before; it is cut off when `over` returns a reason.

        Raises BuckramError, HttpProblem.
        """
        leave = self._transfers.enter(holder_of(principal.name))
        folder: Folder | None = None
        try:
            folder = await asyncio.get_running_loop().run_in_executor(None, Folder)
            use = await self._databases.take(reading.database)
            try:
                if reading.consistency != "stale":
                    await use.database.catch_up(0.0)
                elif reading.at_most_s is not None:
                    await use.database.catch_up(reading.at_most_s)
                offset, _ = await use.database.backup_at(folder.file)
            finally:
                use.give()
            name = f"{reading.database.replace('/', '-')}-{offset}.db"
            headers = {self._offset: str(offset), "Content-Disposition": f'attachment; filename="{name}"'}
            return file_answer(
                folder,
                media=SQLITE,
                stuck_s=self._limits.unread_s,
                headers=headers,
                over=over,
                ended=leave,
            )
        except BaseException:
            if folder is not None:
                folder.remove()
            leave()
            raise

    async def load(
        self, request: Request, reading: Reading, principal: Principal, pieces: Callable[[int], AsyncIterator[bytes]]
    ) -> Response:
        """Fill a database that has nothing in it with the file that is the body. Raises BuckramError, HttpProblem."""
        use = await self._databases.take(reading.database)
        try:
            address = await self._forwarder.leader_elsewhere(use.database)
            if address is not None:
                return redirect(f"{address.rstrip('/')}/{reading.address}/{LOAD}")
            with self._transfers.room(holder_of(principal.name)):
                async with kept(pieces(self._limits.load_bytes)) as file:
                    try:
                        size = await load(use.database, file)
                    except DatabaseNotEmpty as error:
                        raise HttpProblem(409, "NOT_EMPTY", str(error)) from None
            answer = {"database": reading.database, "bytes": size, "offset": use.database.applied}
            return json_answer(request, answer, 201, {self._offset: str(use.database.applied)})
        finally:
            use.give()
