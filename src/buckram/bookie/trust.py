"""The protocol between admission and the part that watches the metadata store's history (`bookie/witness.py`)."""

from __future__ import annotations

from typing import Protocol

from buckram.types import LedgerId


class Trust(Protocol):
    async def confirm(self) -> bool:
        """Whether the store is believed, by a look that begins after this call. MetadataUnavailable."""
        ...

    def admitted(self, ledger_id: LedgerId, birth: bytes) -> None:
        """The store knew this ledger just now."""
        ...

    def contradicted(self, ledger_id: LedgerId, birth: bytes) -> bool:
        """The store says that another ledger has the id of one that is here, by that birth, and not deleted. True: the
        store is not believed any more; False: who accepted its history knew of it, and the one here gives way."""
        ...


class _Unseen:
    """A store whose past nobody watches."""

    async def confirm(self) -> bool:
        return True

    def admitted(self, ledger_id: LedgerId, birth: bytes) -> None:
        pass

    def contradicted(self, ledger_id: LedgerId, birth: bytes) -> bool:
        return False


UNSEEN: Trust = _Unseen()
