"""Connections whose peers are not known yet: how many there may be, for how long, and which one makes room for another.

To connect and say nothing costs an attacker nothing, so whoever is silent gives way to whoever comes: an honest client
speaks as soon as it is connected. Not here: TLS and logins (`bookie/service/security/connection_gate.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from dataclasses import dataclass

from buckram.bookie.service.connections.session import Session

FIRST_S = 3.0
"""Time within which a peer has to say something, and to begin TLS if it must, before it is closed, seconds."""
LOGIN_S = 10.0
"""Time within which a peer has to log in before it is closed, seconds."""
MOST_UNKNOWN = 512
"""Maximum number of connections without a login, and never more than half of all that the bookie takes."""
MOST_OF_ADDRESS = 256
"""Maximum number of these from one address; an IPv6 network of 64 bits counts as one address, because one machine has
all of it."""


@dataclass(slots=True, eq=False)
class _Entry:
    address: str
    timer: asyncio.TimerHandle


class UnauthenticatedConnections:
    """Connections that wait for their login. Peers that are known are not counted here."""

    def __init__(self, *, first_s: float = FIRST_S, login_s: float = LOGIN_S) -> None:
        self._first_s, self._login_s = min(first_s, login_s), login_s
        self._most = MOST_UNKNOWN
        self._entries: dict[Session, _Entry] = {}
        """The oldest first."""
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def bound(self, connections: int) -> None:
        """Limit waiting connections to half of this number of connections."""
        self._most = max(1, min(MOST_UNKNOWN, connections // 2))

    def admit(self, session: Session) -> str:
        """Take one more, which has to be known in time. Return why not; empty if it may come in."""
        address = counted_address(session.transport.get_extra_info("peername"))
        of_address = self._by_address[address]
        if address and of_address >= MOST_OF_ADDRESS and not self.make_room(address):
            return f"{of_address} connections from {address} have not logged in, the limit for one address: try later"
        if len(self._entries) >= self._most and not self.make_room() and not self._make_fair(address):
            return f"{len(self._entries)} connections have not logged in, which is the limit: try later"
        timer = asyncio.get_running_loop().call_later(self._first_s, self._first_look, session)
        self._entries[session] = _Entry(address, timer)
        self._by_address[address] += 1
        return ""

    def make_room(self, address: str = "") -> bool:
        """Drop the oldest connection that has said nothing (from this address); return whether there was one."""
        for session, entry in self._entries.items():
            if address in ("", entry.address) and not session.heard:
                self._drop(session, "sent nothing yet and was closed to make room for another connection")
                return True
        return False

    def _make_fair(self, address: str) -> bool:
        """Drop the oldest connection of the address that has most, if the new one's address has fewer."""
        counts = {one: count for one, count in self._by_address.items() if one}  # who is on this machine is spared
        most = max(counts, key=lambda one: counts[one], default="")
        if not most or counts[most] <= self._by_address[address] + 1:
            return False
        oldest = next(session for session, entry in self._entries.items() if entry.address == most)
        self._drop(
            oldest,
            f"had not logged in, as {counts[most] - 1} others from {most}, and was closed to make room for another",
        )
        return True

    def forget(self, session: Session) -> None:
        """Forget a connection whose peer is known now, or that has ended. Idempotent."""
        entry = self._entries.pop(session, None)
        if entry is None:
            return
        entry.timer.cancel()
        self._by_address[entry.address] -= 1
        if not self._by_address[entry.address]:
            del self._by_address[entry.address]

    def _drop(self, session: Session, why: str) -> None:
        self.forget(session)
        if not session.protocol.authenticated:
            session.abort(why)

    def _first_look(self, session: Session) -> None:
        if not session.heard:
            self._drop(session, f"sent nothing within {self._first_s:g} s")
        elif session.owes_tls:
            self._drop(session, f"did not begin TLS within {self._first_s:g} s")
        else:
            left = self._login_s - self._first_s
            self._entries[session].timer = asyncio.get_running_loop().call_later(left, self._too_late, session)

    def _too_late(self, session: Session) -> None:
        self._drop(session, f"was not secured and logged in within {self._login_s:g} s")


def counted_address(peer: object) -> str:
    """Return the address that a connection counts for; empty for a client of this machine's Unix socket."""
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0])
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else str(found)
