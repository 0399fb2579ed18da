"""Sending a request on to the leader, from a server whose replica follows.

The leader says where it serves in the lease of the database's log, and counts where that is a server of the cluster
(`serve/hrana/others.py`). What was not sent for certain is tried again, also
with the next leader; what may have been executed is not.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from buckram.addresses import join
from buckram.core.backoff import LEADER_WAIT, Delays
from buckram.core.security.principal import Principal
from buckram.errors import MetadataError, MirrorStream
from buckram.metadata.etcd.http import HttpConnection
from buckram.runtime.net.retry import Retries
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.others import Others
from buckram.serve.http.limits import option_of
from buckram.serve.http.problems import HttpProblem
from buckram.state.db.database import Database

FORWARDED = "buckram-forwarded"
_RIGHTS, _READ = "buckram-rights", "read"
"""A header of requests that are sent on: what a client may not do here it may not do at the leader, which knows this
server as the one that connects. It only ever takes rights away."""
_KEPT = 32
"""Connections kept to each leader."""


class Sent(NamedTuple):
    """The leader's answer to a request that was sent on."""

    status: int
    body: bytes
    address: str
    """Of the leader."""
    headers: Mapping[str, str]
    """By their names in small letters."""


class _NotYet(Exception):
    """Nobody leads at the moment, or it cannot be reached; nothing was sent."""


async def _check_writable(database: Database) -> None:
    """HttpProblem for a mirror of a database in another cluster, where somebody leads it."""
    try:
        await database.check_writable()
    except MirrorStream as error:
        raise HttpProblem(409, "MIRROR", str(error)) from None
    except MetadataError:
        return


def rights_sent(may_write: bool) -> dict[str, str]:
    """Headers that tell the leader what the client of a request may do at most."""
    return {} if may_write else {_RIGHTS: _READ}


def rights_left(may_write: bool, headers: Mapping[str, str]) -> bool:
    """Return whether a request may change something, by its own rights and those of where it was sent on."""
    return may_write and headers.get(_RIGHTS) != _READ


class Forwarder:
    """Connections to leaders. `own` is the address that this server announces, `tls` for leaders at https://."""

    def __init__(self, own: str, others: Others, limits: HranaLimits, tls: Callable[[], ssl.SSLContext]) -> None:
        self._own, self._others, self._limits, self._tls = own, others, limits, tls
        self._idle: dict[str, list[HttpConnection]] = {}

    async def leader_elsewhere(self, database: Database) -> str | None:
        """The address of the leader, or None if this replica leads. Waits while nobody does. Raises HttpProblem."""
        loop, pauses = asyncio.get_running_loop(), Delays(LEADER_WAIT)
        deadline = loop.time() + self._limits.leader_wait_s
        while database.role != "leader":
            address, why = await database.leader_address(), ""
            if address is not None and address != self._own and urlsplit(address).scheme in ("http", "https"):
                why = await self._others.why_not(address)
                if not why:
                    return address
            if address is None:
                await _check_writable(database)
            if loop.time() + pauses.next_s >= deadline:
                raise self._no_leader(database, address, why)
            # One that was just opened is about to lead, and does not have to wait for the end of a pause.
            await database.leads_within(pauses.take())
        return None

    async def send(
        self, database: Database, path: str, headers: Mapping[str, str], body: bytes, principal: Principal
    ) -> Sent | None:
        """The leader's answer, or None if this replica leads by now. Raises HttpProblem, MetadataError.

        `headers` do not say who asks: what is sent says that it is the `principal`, for this request only."""
        retries = Retries(LEADER_WAIT, self._limits.leader_wait_s)
        while True:
            address = await self.leader_elsewhere(database)
            if address is None:
                return None
            said = await self._others.headers(principal, unquote(path))
            try:
                async with asyncio.timeout(self._limits.answer_wait_s):
                    sent = await self._ask(address, path, {**headers, **said}, body)
                if sent.status != 421:
                    return sent
                raise _NotYet
            except _NotYet as error:
                try:
                    await retries.wait(error)
                except _NotYet:
                    raise self._no_leader(database, address) from None
            except (OSError, TimeoutError) as error:
                raise HttpProblem(
                    502,
                    "OUTCOME_UNKNOWN",
                    f"the leader of database {database.name} at {address} did not answer "
                    f"({str(error) or 'in time'}): the request may have been executed; look before it is repeated, or "
                    f"send a token with it ({option_of('answer_wait_s')})",
                ) from None

    async def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _ask(self, address: str, path: str, headers: Mapping[str, str], body: bytes) -> Sent:
        place = urlsplit(address)
        secure = place.scheme == "https"
        idle = self._idle.setdefault(f"{place.scheme}://{place.netloc}", [])
        given = {**headers, FORWARDED: "1"}
        while idle:
            connection = idle.pop()
            if connection.usable:
                break
            connection.close()
        else:
            try:
                where = join(place.hostname or "", place.port or (443 if secure else 80))
                connection = await HttpConnection.open(where, self._tls() if secure else None)
            except OSError as error:
                raise _NotYet from error
        status, answer = await connection.ask(place.path.rstrip("/") + path, given, body)
        if connection.usable and len(idle) < _KEPT:
            idle.append(connection)
        else:
            connection.close()
        return Sent(status, answer, address, connection.answered)

    def _no_leader(self, database: Database, address: str | None, why: str = "") -> HttpProblem:
        who = (
            f"its leader {address} {why or 'cannot be reached from here'}"
            if address
            else "nobody leads it at the moment"
        )
        return HttpProblem(
            503,
            "NO_LEADER",
            f"database {database.name}: {who}, for {self._limits.leader_wait_s:g} s; nothing was executed, try "
            f"again ({option_of('leader_wait_s')})",
            headers={"Retry-After": "1"},
        )


__all__ = ["FORWARDED", "Forwarder", "rights_left", "rights_sent"]
