"""Opening a database: its log is made if it does not exist, and this process becomes a replica."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buckram.core.streams.names import check_writer_name
from buckram.errors import DatabaseExists, NoSuchDatabase
from buckram.state.db.commits.database_log import check_database, create_log, has_changes
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.db.database import Database
from buckram.state.db.settings import DatabaseLimits
from buckram.state.machine.machine import process_name
from buckram.state.machine.opening import open_on_log
from buckram.state.machine.replica import Candidacy
from buckram.state.machine.settings import MachineSettings
from buckram.streams.shared.namespaces import Namespaces

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.core.streams.names import StreamName
    from buckram.streams.namespace import StreamNamespace


async def open_database(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    *,
    create: bool = True,
    stand: bool = True,
    announce: str = "",
    limits: DatabaseLimits | None = None,
    settings: MachineSettings | None = None,
    directory: Path | None = None,
    policy: Mapping[str, Any] | None = None,
) -> Database:
    """Open a database; the arguments are those of `Namespace.database`. MissingEngine."""
    check_writer_name(announce)
    if not await ns.exists(name.stream):
        if not create:
            await Namespaces(ns.store).get(name.namespace)  # or that is what does not exist
            raise NoSuchDatabase(str(name))
        with suppress(DatabaseExists):
            await create_log(ns, name, policy or {})
    cdc = has_changes(await check_database(ns, name))
    full = str(name)
    state = DatabaseState(full)
    database = Database(
        full, state, limits or DatabaseLimits(), directory, client.services.forget, client.services.runtime.threads
    )
    if cdc:
        database.note_rows()
    try:
        replica = await open_on_log(
            client,
            ns,
            name,
            state,
            create=False,
            candidacy=Candidacy(stand, announce or process_name()),
            settings=settings or MachineSettings(),
            policy=policy or {},
        )
    except BaseException:
        await database.abandon()
        raise
    database.start(replica)
    try:
        client.services.adopt(database, database.aclose)
    except BaseException:
        await database.aclose()
        raise
    return database
