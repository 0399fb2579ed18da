"""Planted bugs about who answers: introductions that are not waited for, not compared, or not enforced."""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.bookie.service.session import Session
from buckram.net.connection import Connection
from buckram.net.introductions import Introductions
from buckram.sim.engine.planting import nothing, plant
from buckram.sim.ledgers.mutants.base import Mutant

_introduce = Connection.introduce
_pending: set[asyncio.Task[None]] = set()


async def _does_not_wait(self: Introductions, connection: Connection) -> None:
    expected = self._expect(connection.bookie_id)
    assert expected is not None
    task = asyncio.create_task(_introduce(connection, expected.introduction))
    _pending.add(task)
    task.add_done_callback(_pending.discard)
    await asyncio.sleep(0)


def _no_objection(self: Introductions, connection: Connection) -> None:
    """Whoever answered is the right one."""


def _says_nothing(*args: Any) -> str:
    return ""


async def _asks_nobody(self: Introductions, connection: Connection) -> None:
    """As clients did before there were introductions."""


MUTANTS = [
    Mutant(
        "introduction-not-awaited",
        "I1",
        "requests leave before the peer has said who it is",
        plant((Introductions, "exchange", _does_not_wait)),
    ),
    Mutant(
        "mismatch-ignored",
        "I2",
        "a client goes on with a peer that said that it is somebody else",
        plant((Introductions, "objection", _no_objection), (Connection, "check_incarnation", nothing)),
        ("D12",),
    ),
    Mutant(
        "serves-strangers",
        "I3",
        "a bookie serves a client that wants another one",
        plant((Session, "refuse", nothing)),
        ("D11",),
    ),
    Mutant(
        "nobody-is-asked",
        "I1, S1",
        "clients take whoever is at a bookie's address for the bookie",
        plant((Introductions, "exchange", _asks_nobody)),
        ("D12",),
    ),
]
