"""The election of the auditor: votes in the order in which the store numbered them; the first is elected.

On ZooKeeper these are Apache's votes, so one auditor is elected among both kinds. A vote vanishes with its session.
Not here: what an auditor does (`healing/auditing/auditor.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, runtime_checkable

from buckram.core.healing.records import VOTE_PREFIX, TreePaths, encode_holder, parse_holder, vote_number
from buckram.errors import KeyExists, MetadataUnavailable, NoSuchKey, VersionConflict
from buckram.metadata.tree.key_operations import remove
from buckram.seams import KeyStore, Notify

_PAGE, _TRIES = 1000, 20


@runtime_checkable
class NumberingKeys(Protocol):
    """A KeyStore whose server numbers keys itself; foreign voters on it must be numbered by the same count."""

    async def create_numbered(self, prefix: str, value: bytes) -> str:
        """Make an ephemeral key `prefix` + number; return the whole key."""
        ...


class Vote(NamedTuple):
    """Vote of one candidate."""

    number: int
    name: str
    """Name of its key."""
    candidate: str
    owned: bool
    """True if the vote is of this session."""


class Election:
    """One session's part in it. `candidate` is shown to people."""

    def __init__(self, keys: KeyStore, root: str, candidate: str) -> None:
        self._keys, self._candidate = keys, candidate
        self._folder = TreePaths(root).election

    async def votes(self) -> list[Vote]:
        """Return all votes, the elected one first."""
        found: list[Vote] = []
        for name in await self._keys.children(self._folder, limit=_PAGE):
            number = vote_number(name)
            if number is None:
                continue
            with suppress(NoSuchKey):
                vote = await self._keys.get(f"{self._folder}/{name}")
                found.append(Vote(number, name, parse_holder(vote.value), vote.owned))
        return sorted(found)

    async def stand(self) -> None:
        """Become a candidate, once: a vote that this session already has counts."""
        votes = await self.votes()
        if any(vote.owned for vote in votes):
            return
        value = encode_holder(self._candidate)
        if isinstance(self._keys, NumberingKeys):
            with suppress(KeyExists):
                await self._keys.create(self._folder, b"")
            await self._keys.create_numbered(f"{self._folder}/{VOTE_PREFIX}", value)
            return
        for _ in range(_TRIES):
            number = max((vote.number for vote in votes), default=-1) + 1
            with suppress(KeyExists):
                await self._keys.create(f"{self._folder}/{VOTE_PREFIX}{number:010d}", value, ephemeral=True)
                return
            votes = await self.votes()
        raise MetadataUnavailable(f"{self._folder}: too many candidates at once; try again")

    async def elected(self, changed: Notify) -> bool:
        """Return whether this session's vote is the first; stands for election if it has none.

        `changed` is called when the answer may have changed: when the vote before it vanishes, or, while elected, its
        own.
        """
        while True:
            votes = await self.votes()
            own = next((index for index, vote in enumerate(votes) if vote.owned), None)
            if own is None:
                await self.stand()
                continue
            watched = votes[max(0, own - 1)]
            try:
                await self._keys.get(f"{self._folder}/{watched.name}", changed)
            except NoSuchKey:
                continue  # it was just deleted; the watch may fire once without a change
            if own == 0:
                await self._show()
            return own == 0

    async def _show(self) -> None:
        """Write the elected candidate into the folder itself; only people and tools read that."""
        value = encode_holder(self._candidate)
        with suppress(NoSuchKey, VersionConflict):
            found = await self._keys.get(self._folder)
            if found.value != value:
                await self._keys.set(self._folder, value, found.version)

    async def withdraw(self) -> None:
        """Take this session's votes back. Idempotent."""
        for vote in await self.votes():
            if vote.owned:
                await remove(self._keys, f"{self._folder}/{vote.name}")


def elected_of(votes: Sequence[Vote]) -> str:
    """Return the name of the auditor; empty if there is none."""
    return votes[0].candidate if votes else ""
