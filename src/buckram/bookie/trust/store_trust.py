"""The protocol between admission and the part that watches the metadata store's history (`bookie/trust/witness.py`)."""

from __future__ import annotations

from typing import Protocol

from buckram.types import CheckVersion, LedgerId


class Trust(Protocol):
    """A judge of whether the metadata store still holds what it once confirmed."""

    async def confirm(self) -> bool:
        """Return whether the store is trusted and this bookie a member, by a look that begins after this call. Raises
        MetadataUnavailable."""
        ...

    def unchanged(self) -> tuple[CheckVersion, ...]:
        """Return the versions of the keys that the last look found: while they hold, so does what it found."""
        ...

    def admitted(self, ledger_id: LedgerId, birth: bytes) -> None:
        """Record that the store knew this ledger just now."""
        ...

    def contradicted(self, ledger_id: LedgerId, birth: bytes) -> bool:
        """Record that the store lists another ledger under the id of one of birth `birth` that is here, not deleted.

        Returns whether the store is suspect now. If not, whoever accepted its history knew that the id was used again,
        and the data that is here may be dropped.
        """
        ...


class _Unseen:
    """Trusts any store; for bookies whose metadata store is not watched."""

    async def confirm(self) -> bool:
        return True

    def unchanged(self) -> tuple[CheckVersion, ...]:
        return ()

    def admitted(self, ledger_id: LedgerId, birth: bytes) -> None:
        pass

    def contradicted(self, ledger_id: LedgerId, birth: bytes) -> bool:
        return False


UNSEEN: Trust = _Unseen()
