"""The part of a store that records ledger state: keys, births, deletions, LACs. Nothing here awaits.

The caller checks keys, fences and births; between its check and the insertion there is no await.
"""

from __future__ import annotations

from buckram.bookie.storage.ledger_table import LedgerRecord
from buckram.bookie.storage.read_results import unless_harmless
from buckram.bookie.storage.reading.readable_store import ReadableStore
from buckram.bookie.storage.segments.index import LedgerIndex
from buckram.bookie.storage.segments.segments import Segment
from buckram.bookie.storage.store_state import StoreState
from buckram.bookie.storage.upkeep.maintenance import Maintenance
from buckram.core.storage.ledger_state import MAX_LAC_PACKET, STATE_FRAME_SIZE
from buckram.errors import InvalidArgument, invariant_failed
from buckram.types import BIRTH_SIZE, MASTER_KEY_SIZE, NO_BIRTH, NO_ENTRY, EntryId, LedgerId


def _check_key(master_key: bytes) -> None:
    if len(master_key) != MASTER_KEY_SIZE:
        raise InvalidArgument(f"a master key has {MASTER_KEY_SIZE} bytes, not {len(master_key)}")


def _check_birth(birth: bytes) -> None:
    if len(birth) != BIRTH_SIZE:
        raise InvalidArgument(f"a ledger's birth has {BIRTH_SIZE} bytes, not {len(birth)}")


class LedgerStates(ReadableStore):
    """The methods of Store that write ledger states; Store sets these attributes.

    Each of them may raise StoreError; then nothing has changed.
    """

    _state: StoreState
    _maintenance: Maintenance

    def ledger(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """Return the ledger's record; None if this incarnation never saw it, or, in limbo, may have lost it."""
        return self._table.find(ledger_id)

    def _first_touch(self, ledger_id: LedgerId) -> tuple[LedgerRecord, LedgerIndex]:
        """Write the ledger's state before its first add in the active segment, which can then be read by itself."""
        record = self._known(ledger_id)
        ledger_index = self._index_of(record)
        record.tombstone = False
        self._append_state(record)
        return record, ledger_index

    def _index_of(self, record: LedgerRecord) -> LedgerIndex:
        """Return the record's index in the active segment; the index in an older segment keeps the present state."""
        segment = self._log.segment
        assert segment is not None
        assert segment.index is not None
        ledger_index = record.active_index
        if ledger_index is not None:
            if ledger_index.segment == segment.seq:
                return ledger_index
            ledger_index.frozen = record.snapshot()
        ledger_index = record.active_index = segment.index.ledgers[record.ledger_id] = LedgerIndex(segment.seq, record)
        self._table.pin(record)
        return ledger_index

    def _append_state(self, record: LedgerRecord) -> None:
        frame = record.frame()
        self._log.append(frame, 0, len(frame))

    def _change(self, record: LedgerRecord) -> LedgerIndex:
        """Make room for a change of the record; `_append_state` follows, with no await in between."""
        self._log.make_room(STATE_FRAME_SIZE)
        return self._index_of(record)

    def put_ledger(
        self,
        ledger_id: LedgerId,
        master_key: bytes,
        admitted: bool = True,
        *,
        born: bool = False,
        birth: bytes = NO_BIRTH,
        proven: bool = False,
    ) -> None:
        """Create the ledger's record, or revive it after deletion (it stays fenced).

        If the record exists, only `birth` and admission are recorded.

        `admitted`: metadata allowed normal adds. `born`: the ledger is certainly younger than any loss of this store.
        `birth`: which ledger of that id it is; learned where the record has none, InvalidArgument where it has another.
        `proven`: metadata was asked for the key; what it admits is always proven.
        """
        _check_key(master_key)
        record = self._table.find(ledger_id)
        if record is None:
            _check_birth(birth)
            record = LedgerRecord(
                ledger_id, master_key, admitted=admitted, born=self._mark(born), birth=birth, proven=proven or admitted
            )
            record.limbo = self._state.losses.marks(record)
        else:
            if birth != NO_BIRTH:
                self.learn_birth(ledger_id, birth)
            if not record.tombstone:
                if admitted:
                    self.admit(ledger_id)
                return
            self._change(record)
            record.tombstone, record.admitted = False, admitted
            record.proven = record.proven or admitted
            self._append_state(record)
            return
        self._change(record)
        self._append_state(record)

    def _mark(self, born: bool) -> int:
        losses = self._state.losses
        return losses.count if born or not losses.limbo else losses.count - 1

    def learn_birth(self, ledger_id: LedgerId, birth: bytes) -> None:
        """Record the birth of a ledger, which may be deleted, if it is not known yet.

        Raises InvalidArgument if another birth is known: that is another ledger, see `reborn`.
        """
        record = self._known(ledger_id)
        if record.birth == birth:
            return
        if record.birth != NO_BIRTH:
            raise InvalidArgument(
                f"ledger {ledger_id} of birth {record.birth.hex()} is here, birth {birth.hex()} is another ledger"
            )
        _check_birth(birth)
        self._change(record)
        record.birth = birth
        self._append_state(record)

    def reborn(
        self, ledger_id: LedgerId, master_key: bytes, birth: bytes, *, born: bool = False, admitted: bool = True
    ) -> None:
        """Replace the ledger by another one that has its id now; data and fence of the one before are dropped.

        The new ledger is proven, unfenced, empty, and admitted unless `admitted` is false. Raises InvalidArgument if
        the stored ledger has this birth.
        """
        _check_key(master_key)
        _check_birth(birth)
        record = self._known(ledger_id)
        if record.birth == birth:
            raise InvalidArgument(f"ledger {ledger_id} of birth {birth.hex()} is here already")
        self._anew(record, master_key, birth, self._mark(born), admitted)

    def disown(self, ledger_id: LedgerId, master_key: bytes, birth: bytes) -> None:
        """Replace a wrong key by `master_key`; data and fence that came with the wrong key are dropped (F14).

        The ledger is then proven, unfenced, empty and not admitted. Raises InvalidArgument if the stored key is proven
        or equal.
        """
        _check_key(master_key)
        _check_birth(birth)
        record = self._known(ledger_id)
        if record.proven or record.master_key == master_key:
            raise InvalidArgument(f"ledger {ledger_id}: its key is proven or is this one, so it cannot be replaced")
        self._anew(record, master_key, birth, record.born, False)

    def _anew(self, record: LedgerRecord, master_key: bytes, birth: bytes, born: int, admitted: bool) -> None:
        self._log.make_room(2 * STATE_FRAME_SIZE)
        self.delete_ledger(record.ledger_id)
        ledger_index = self._change(record)
        record.epoch += 1
        record.tombstone = record.fenced = False
        record.admitted, record.master_key, record.birth = admitted, master_key, birth
        record.born, record.proven = born, True
        record.limbo = self._state.losses.marks(record)
        ledger_index.clear(record.epoch)
        ledger_index.bytes = 0
        self._append_state(record)

    def _known(self, ledger_id: LedgerId) -> LedgerRecord:
        if (record := self._table.find(ledger_id)) is None:
            invariant_failed("put_ledger", f"ledger {ledger_id} has no record")
        return record

    def admit(self, ledger_id: LedgerId) -> None:
        """Record that metadata allows normal adds, so that it is asked only once."""
        record = self._known(ledger_id)
        if not record.admitted:
            self._change(record)
            record.admitted = record.proven = True
            self._append_state(record)

    def prove(self, ledger_id: LedgerId) -> None:
        """Record that metadata confirmed the stored key or knows no key for the ledger."""
        record = self._known(ledger_id)
        if not record.proven:
            self._change(record)
            record.proven = True
            self._append_state(record)

    def set_explicit_lac(self, ledger_id: LedgerId, lac: EntryId, packet: bytes) -> None:
        """Store the packet; the known LAC only grows. Raises InvalidArgument for a packet that is too long."""
        if len(packet) > MAX_LAC_PACKET:
            raise InvalidArgument(f"explicit LAC packet of {len(packet)} bytes: the limit is {MAX_LAC_PACKET}")
        record = self._known(ledger_id)
        self._change(record)
        record.explicit_lac = bytes(packet)
        record.lac = max(record.lac, lac)
        self._append_state(record)

    def _bytes_of(self, segment: Segment, record: LedgerRecord) -> int:
        try:
            return segment.bytes_of(record.ledger_id, record.epoch)
        except (ValueError, OSError) as error:
            unless_harmless(error, f"the index of log file {segment.name}")
            self._maintenance.repair_footer(segment)
            return 0

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Write a tombstone: the data is dead, key and fence stay for ever. No-op for an unknown or deleted ledger."""
        record = self._table.find(ledger_id)
        if record is None or record.tombstone:
            return
        self._log.make_room(STATE_FRAME_SIZE)
        state = self._state
        # In the active segment the index itself forgets the data.
        dead = [(one, self._bytes_of(one, record)) for one in state.segments if one is not self._log.segment]
        ledger_index = self._change(record)
        for segment, count in dead:
            segment.dead_bytes += count
        if state.deleted_while_compacting is not None:
            state.deleted_while_compacting.append((ledger_id, record.epoch))
        record.epoch += 1
        record.tombstone = record.fenced = True
        record.admitted = False
        record.lac = record.last = NO_ENTRY
        record.explicit_lac = None
        ledger_index.clear(record.epoch)
        ledger_index.bytes = 0
        self._append_state(record)
