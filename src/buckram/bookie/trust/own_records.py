"""Reads what the metadata store holds about this bookie: the store's history, the id's witness key, and the cookie.

Not here: what follows from it (`bookie/trust/witness.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from buckram.bookie.trust.cookie import ClaimedDirectory, witness_key
from buckram.core.cluster.cookie import parse_cookie, same_cookie
from buckram.core.cluster.store_history import Confirmed, parse_statement
from buckram.errors import MalformedRecord, NoSuchKey
from buckram.seams import MetadataStore
from buckram.types import CheckVersion, History, KeyValue


class StoredRecords(NamedTuple):
    """The store's records about this bookie. `cookie`: version of this bookie's cookie; None if there is none, or the
    one there is another bookie's."""

    history: History
    witness: Confirmed | None
    cookie: int | None


class OwnRecords:
    """The records of one bookie."""

    def __init__(self, metadata: MetadataStore, claimed: ClaimedDirectory) -> None:
        self._metadata, self._claimed = metadata, claimed
        self.key = witness_key(metadata, claimed.bookie_id)

    async def read(self) -> StoredRecords:
        """Read all of it at once, because adds of new ledgers wait for it. Raises MetadataError.

        The instance id shows whether the store still holds this cluster.
        """
        answers = await asyncio.gather(
            self._metadata.history(),
            self._metadata.instance_id(),
            _there(lambda: self._metadata.keys.get(self.key)),
            _there(lambda: self._metadata.read_cookie(self._claimed.bookie_id)),
            return_exceptions=True,
        )
        for answer in answers:  # the history's error comes first: it explains the others
            if isinstance(answer, BaseException):
                raise answer
        history, _, key, cookie = answers
        assert isinstance(history, History)
        assert not isinstance(key, BaseException)
        assert not isinstance(cookie, BaseException)
        witness = None if key is None else Confirmed(key.version, parse_statement(self.key, key.value))
        return StoredRecords(history, witness, self._own_version(cookie))

    def _own_version(self, cookie: KeyValue | None) -> int | None:
        if cookie is None:
            return None
        try:
            own = same_cookie(self._claimed.cookie, parse_cookie(cookie.value))
        except MalformedRecord:
            own = True  # undecidable: `buckram cluster check` names it, and a start refuses it
        return cookie.version if own else None

    def versions(self, found: StoredRecords) -> tuple[CheckVersion, ...]:
        """Return the versions of cookie and witness key: while they hold, so does what was found."""
        seen = []
        if found.cookie is not None:
            seen.append(CheckVersion(self._metadata.cookie_key(self._claimed.bookie_id), found.cookie))
        if found.witness is not None:
            seen.append(CheckVersion(self.key, found.witness.version))
        return tuple(seen)


async def _there(read: Callable[[], Awaitable[KeyValue]]) -> KeyValue | None:
    try:
        return await read()
    except NoSuchKey:
        return None
