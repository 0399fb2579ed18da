"""What tests of databases share: the pages of a replica, and waiting until replicas are equal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import apsw

from buckram.core.db.digest import digest_of as digest_of_pages
from buckram.state.db.database import Database


async def image_of(database: Database) -> bytes:
    """All pages of the state that a replica has. Nothing may be written meanwhile."""
    with closing(await database._engine.image(database._state.sequence)) as image:
        return b"".join(image.pages())


def digest_of(pages: bytes) -> int:
    """The digest of an image, computed from the beginning."""
    return digest_of_pages(pages[at : at + 4096] for at in range(0, len(pages), 4096))


async def check_equal(leader: Database, followers: Sequence[Database]) -> bytes:
    """Every replica has the same bytes, of the digest that they keep, and SQLite finds no fault with them."""
    want = await image_of(leader)
    assert digest_of(want) == leader._engine.digest == leader._state._digest
    for follower in followers:
        await follower._replica.applied_at_least(leader.applied)
        assert await image_of(follower) == want
        assert follower._engine.digest == leader._engine.digest
    assert faults_of(want) == [("ok",)]
    return want


def faults_of(pages: bytes) -> list[tuple[object, ...]]:
    """What SQLite finds wrong with an image. A connection that has read before is not asked: SQLite 3.54 compares the
    index of an FTS5 table with what that connection knew of it."""
    with closing(apsw.Connection(":memory:")) as connection:
        rollback_mode = b"\x01\x01"  # A database in memory has no write-ahead log.
        connection.deserialize("main", pages[:18] + rollback_mode + pages[20:])
        return connection.execute("PRAGMA integrity_check").fetchall()
