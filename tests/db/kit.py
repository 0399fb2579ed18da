"""What tests of databases share: the pages of a replica, and waiting until replicas are equal."""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.db.digest import page_hash, replaced
from buckram.db.database import Database


def image_of(database: Database) -> bytes:
    """All pages of the state that a replica has. Nothing may be written meanwhile."""
    image = database._engine.image(database._state.sequence)
    try:
        return b"".join(image.pages())
    finally:
        image.close()


def digest_of(pages: bytes) -> int:
    """The digest of an image, computed from the beginning."""
    digest = 0
    for number in range(len(pages) // 4096):
        digest = replaced(digest, 0, page_hash(number + 1, pages[number * 4096 : (number + 1) * 4096]))
    return digest


async def check_equal(leader: Database, followers: Sequence[Database]) -> bytes:
    """Every replica has the same bytes, of the digest that they keep, and SQLite finds no fault with them."""
    want = image_of(leader)
    assert digest_of(want) == leader._engine.digest == leader._state._digest
    for follower in followers:
        await follower._replica.applied_at_least(leader.applied)
        assert image_of(follower) == want
        assert follower._engine.digest == leader._engine.digest
        assert (await follower.query("PRAGMA integrity_check", consistency="stale")).rows == [("ok",)]
    return want
