"""Planted bugs of identity: introductions that are not awaited, not compared, or not enforced."""

from __future__ import annotations

import asyncio

from buckram.bookie.service.connections.session import Session
from buckram.runtime.net.connection import Connection
from buckram.runtime.net.introductions import Introductions
from simulator.engine.planting import nothing, plant
from simulator.ledgers.mutants.base import Mutant

_introduce = Connection.introduce
_pending: set[asyncio.Task[None]] = set()


async def _does_not_wait(self: Introductions, connection: Connection) -> None:
    expected = self._identities.expected(connection.bookie_id)
    assert expected is not None
    task = asyncio.create_task(_introduce(connection, expected.introduction))
    _pending.add(task)
    task.add_done_callback(_pending.discard)
    await asyncio.sleep(0)


def _no_mismatch(self: Introductions, connection: Connection) -> None:
    """Accept any identity."""


async def _send_no_introduction(self: Introductions, connection: Connection) -> None:
    """Send no introduction."""


MUTANTS = [
    Mutant(
        "introduction-not-awaited",
        "I1",
        "requests are sent before the peer has sent its identity",
        plant((Introductions, "exchange", _does_not_wait)),
    ),
    Mutant(
        "mismatch-ignored",
        "I2",
        "a client goes on with a peer that has another identity",
        plant((Introductions, "mismatch", _no_mismatch), (Connection, "check_incarnation", nothing)),
        scenarios=("D12",),
    ),
    Mutant(
        "serves-strangers",
        "I3",
        "a bookie serves a client that wants another one",
        plant((Session, "refuse", nothing)),
        scenarios=("D11",),
    ),
    Mutant(
        "introduction-not-sent",
        "I1, S1",
        "clients do not check the identity of the bookie at an address",
        plant((Introductions, "exchange", _send_no_introduction)),
        scenarios=("D12",),
    ),
]
