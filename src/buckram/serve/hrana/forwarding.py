"""Forwarding of requests to the leader, from a server whose replica follows.

The leader announces its address in the lease of the database's log, which every client that may append to the database
can write. So the address is used only if a server of the cluster shows it. A forwarded request carries a token of its
own, for this one path and principal, which only servers that open the store directly can make. A request that certainly
was not sent is retried, also with the next leader; one that may have been executed is not.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from buckram.addresses import join
from buckram.core.backoff import LEADER_WAIT, Delays
from buckram.core.security.principal import Principal
from buckram.errors import MetadataError, MirrorStream
from buckram.metadata.tree.layout import DATABASE_SERVERS
from buckram.runtime.net.http_client import HttpConnection
from buckram.runtime.process.retry import Retries
from buckram.seams import MetadataStore
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.http.limits import option_of
from buckram.serve.http.problems import HttpProblem
from buckram.serve.http.server_registry import ServerRegistry
from buckram.serve.http.tokens import Vouch
from buckram.state.db.database import Database

FORWARDED = "buckram-forwarded"
_RIGHTS, _READ = "buckram-rights", "read"
"""Header of forwarded requests that limits the client's rights at the leader, where the request's principal may have
more than at this server. It can only take rights away.
"""
_KEPT = 32
"""Connections kept to each leader."""


class Sent(NamedTuple):
    """The leader's answer to a forwarded request."""

    status: int
    body: bytes
    address: str
    """Address of the leader that answered."""
    headers: Mapping[str, str]
    """Headers of the answer, by their names in lower case."""


class _NotYet(Exception):
    """The leader cannot be reached or does not lead (any more); nothing was executed."""


async def _check_writable(database: Database) -> None:
    """Raise HttpProblem 409 for a mirror of another cluster's database, which is led and written there."""
    try:
        await database.check_writable()
    except MirrorStream as error:
        raise HttpProblem(409, "MIRROR", str(error)) from None
    except MetadataError:
        return


def rights_sent(may_write: bool) -> dict[str, str]:
    """Return the headers that limit the client's rights at the leader."""
    return {} if may_write else {_RIGHTS: _READ}


def rights_left(may_write: bool, headers: Mapping[str, str]) -> bool:
    """Return whether a request may change something, by its own rights and those that a forwarding server left it."""
    return may_write and headers.get(_RIGHTS) != _READ


class Forwarder:
    """Connections to leaders. `own` is the address that this server announces, `tls` for leaders at https://."""

    def __init__(
        self, own: str, others: DatabaseServerRegistry, limits: HranaLimits, tls: Callable[[], ssl.SSLContext]
    ) -> None:
        self._own, self._others, self._limits, self._tls = own, others, limits, tls
        self._idle: dict[str, list[HttpConnection]] = {}

    async def leader_elsewhere(self, database: Database) -> str | None:
        """Return the leader's address, or None if this replica leads. Waits for a leader. Raises HttpProblem."""
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
        """Return the leader's answer, or None if this replica leads by now. Raises HttpProblem, MetadataError.

        `headers` carry no credentials: a header that vouches for the `principal`, for this request only, is added.
        """
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
                    f"({str(error) or 'in time'}): the request may have been executed; check before you repeat it, or "
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
            else "it has no leader at the moment"
        )
        return HttpProblem(
            503,
            "NO_LEADER",
            f"database {database.name}: {who}, for {self._limits.leader_wait_s:g} s; nothing was executed, try "
            f"again ({option_of('leader_wait_s')})",
            headers={"Retry-After": "1"},
        )


# -- the servers of databases -----------------------------------------------------------------------------

_FRESH_S = 2.0
"""Time for which the list of shown servers is cached, seconds."""


class DatabaseServerRegistry:
    """The registry of database servers, this one included. `own` is the address that it announces.

    `vouch`: makes the header that names the principal of a forwarded request, because the servers require tokens; then
    requests are forwarded only through TLS, or to this machine. None: every client may do everything.
    """

    def __init__(self, store: MetadataStore, own: str, vouch: Vouch | None) -> None:
        self._shown, self._vouch = ServerRegistry(store, DATABASE_SERVERS, own), vouch
        self._known: frozenset[str] = frozenset()
        self._until = 0.0

    async def start(self) -> None:
        """Show this server, before it leads anything."""
        await self._shown.start()

    async def close(self) -> None:
        await self._shown.close()

    async def why_not(self, address: str) -> str:
        """Return why no request may be forwarded to an announced address, as the end of a sentence about it; empty if
        one may.
        """
        if not await self._is_shown(address.rstrip("/")):
            return "is registered by no server of this cluster, so nothing is sent there"
        if self._vouch is not None and not _is_private(address):
            return "has no TLS, and with tokens requests are sent on through TLS only: start it with --tls-cert"
        return ""

    async def headers(self, principal: Principal, path: str) -> dict[str, str]:
        """Return the headers that vouch for the principal of one request to this path. Raises MetadataError."""
        return {} if self._vouch is None else {"authorization": await self._vouch(principal, path)}

    async def _is_shown(self, address: str) -> bool:
        now = asyncio.get_running_loop().time()
        if address not in self._known or now >= self._until:
            try:
                self._known = frozenset(peer.url for peer in await self._shown.shown())
            except MetadataError:
                return False
            self._until = now + _FRESH_S
        return address in self._known


def _is_private(address: str) -> bool:
    """Return whether the way to an address cannot be eavesdropped: through TLS, or on this machine."""
    place = urlsplit(address)
    if place.scheme == "https" or place.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(place.hostname or "").is_loopback
    except ValueError:
        return False
