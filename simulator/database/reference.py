"""Reference: an independent fold of a database's log into pages, with the facts of groups and tokens.

It knows the bytes of records and groups, and nothing of `state/db/commits/state_machine.py`,
`state/db/table_engine/engine.py` or `core/db/outcomes.py`, whose bugs it must find. Not here: comparing replicas with
it (`rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import apsw

from buckram.core.db.digest import EMPTY_PAGE, page_hash
from buckram.core.db.group import PART, Group, decode_group
from buckram.core.db.wal_format import PAGE_BYTES
from buckram.core.machine import records
from buckram.core.machine.records import CommandRecord
from buckram.core.streams.records.codecs import Codec

_PART_HEAD = 26
Pages = dict[int, bytes]


@dataclass(slots=True)
class _Session:
    lowest: int = 0
    done: set[int] = field(default_factory=set)


class Reference:
    """The fold of all records of one log that any replica has applied."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.after: list[int] = []
        """The number of groups after each record."""
        self.states: list[Pages] = [{1: EMPTY_PAGE}]
        """The pages after each number of groups: states[n] after n groups."""
        self.offsets: list[int] = []
        """The log offset of each committed group."""
        self.tokens: dict[str, str] = {}
        """The counts of affected rows of each committed token."""
        self.twice: list[str] = []
        """Tokens that were committed a second time."""
        self.groups: set[tuple[int, int]] = set()
        """Leadership and sequence of the committed groups."""
        self.wrong: list[int] = []
        """Groups whose digest is not that of their pages."""
        self.void = self.cut = self.shared = self.shrunk = 0
        self._sessions: dict[int, _Session] = {}
        self._parts: list[bytes] = []
        self._codec = Codec()

    @property
    def end(self) -> int:
        return len(self.values)

    @property
    def sequence(self) -> int:
        return len(self.states) - 1

    def state_before(self, offset: int) -> Pages:
        """Return the pages of a replica that has applied everything below the offset."""
        return self.states[self.after[offset - 1] if offset else 0]

    def append(self, value: bytes) -> None:
        """Apply the next record of the log."""
        offset, record = self.end, records.decode(value)
        self.values.append(value)
        if isinstance(record, CommandRecord):
            self._command(offset, record)
        elif isinstance(record, records.PlainRecord) and record.kind == records.SESSION:
            self._sessions[offset] = _Session()
        self.after.append(self.sequence)

    def _command(self, offset: int, record: CommandRecord) -> None:
        session = self._sessions.get(record.session)
        if session is None or record.sequence < session.lowest or record.sequence in session.done:
            return
        session.lowest = max(session.lowest, record.lowest)
        session.done.add(record.sequence)
        payload = record.payload
        if payload[1] == PART:
            index, count = int.from_bytes(payload[18:22], "big"), int.from_bytes(payload[22:26], "big")
            if index and (len(self._parts) != index or self._parts[0][2:18] != payload[2:18]):
                self._parts = []
                return
            self._parts = [*(self._parts if index else []), payload]
            if index + 1 < count:
                return
            payload = b"".join(part[_PART_HEAD:] for part in self._parts)
            self.cut += 1
        self._parts = []
        self._group(offset, decode_group(payload, self._codec))

    def _group(self, offset: int, group: Group) -> None:
        if group.sequence != self.sequence + 1:
            self.void += 1
            return
        pages = dict(self.states[-1])
        for page in group.pages:
            content = bytearray(pages.get(page.number) or bytes(PAGE_BYTES))
            for start, data in page.ranges:
                content[start : start + len(data)] = data
            pages[page.number] = bytes(content)
        self.states.append({number: pages[number] for number in sorted(pages) if number <= group.size})
        self.offsets.append(offset)
        self.shrunk += len(self.states[-1]) < len(self.states[-2])
        digest = sum(page_hash(number, page) for number, page in self.states[-1].items()) % 2**64
        if digest != group.digest:
            self.wrong.append(group.sequence)
        self.groups.add((group.leadership, group.sequence))
        self.shared += len(group.receipts) > 1
        for receipt in group.receipts:
            if receipt.token in self.tokens:
                self.twice.append(receipt.token)
            self.tokens[receipt.token] = receipt.counts

    def rows(self, sql: str, sequence: int = -1) -> list[tuple[object, ...]]:
        """Return what plain SQLite reads from the pages after `sequence` groups (-1: the newest pages)."""
        image = bytearray(b"".join(self.states[sequence].values()))
        image[18:20] = b"\1\1"  # in memory there is no write-ahead log
        connection = apsw.Connection(":memory:")
        try:
            connection.deserialize("main", bytes(image))
            return list(connection.execute(sql))
        finally:
            connection.close()


__all__ = ["Pages", "Reference"]
