"""Names of what must hold in a stream's life, and of situations that a run of many lives must have reached."""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "durable": "an acknowledged record is in the stream, at the offset that was told, until it is truncated",
    "exactly-once": "a reader gets offsets one after another: none twice, none left out",
    "start": "a reader begins where it was told to: offset, append time, txid, earliest, latest, cursor",
    "stable": "an offset has one record and a record one offset, for every reader and at every time",
    "authentic": "what is read was appended so; what was refused is never in the stream",
    "call-order": "the records of one writer stand in the order of its calls, a producer's in that of its sequences",
    "dense": "offsets are 0, 1, 2, ... up to the end that the list tells, without a hole",
    "fence": "what an old writer appends after its segment was sealed by another is never acknowledged",
    "undisturbed": "a writer loses its stream only to another writer, a bulk step or a deletion",
    "takeover": "a new writer's next_offset lies beyond everything acknowledged or read before",
    "M9": "rows follow one another without a gap; one open row at most, the last; nothing is acknowledged unlisted",
    "head": "a head's epoch, earliest, first, end and times never go back; a sealed row never changes",
    "sealed-row": "a sealed row says what its closed ledger holds",
    "idempotent": "a producer's record is stored once, however often it was sent; a retry is told the same offset",
    "atomic": "an atomic batch is there as a whole or not at all",
    "clocks": "records are stamped with the bookies' time, and nothing goes by age where clocks are apart (T1, T2)",
    "append-time": "append times never go back over offsets, and are the same for every reader",
    "txid": "txids never decrease over offsets; expect_offset is kept",
    "truncation": "earliest moves only where somebody asked, exactly to the record",
    "compacted": "a compacted segment holds whole segments that it replaces, their records and times; offsets stay",
    "kept": "a ledger of a stream is deleted only when it is dead, garbage, discarded, or its stream deleted",
    "orphans": "after the janitor no ledger and no key is left that no stream needs",
    "visible": "a tailing reader gets a record within 20 ms of its acknowledgement, also of an idle writer",
    "follow": "a following reader gets everything, and ends where the stream ends",
    "cursor": "a cursor only moves up, to what was handed out",
    "bulk": "a transaction is published once, its ledgers whole and in order, at the offsets that were told",
    "deleted": "a deleted stream is gone with all its keys and ledgers, and nothing more is acknowledged",
    "ends": "once all is well every operation ends and the stream can be written and read",
}
"""Beside them count the ledgers' invariants of metadata, and `uncaught`."""

SITUATIONS = (
    "took over a writer that lives", "took over a writer that died", "polite writer refused", "waited for the lease",
    "writer lost the stream", "rolled by size", "rolled by time", "rolled by call", "put off a roll",
    "crash while opening", "crash while rolling", "crash while truncating", "crash while deleting",
    "crash in a bulk step", "crash of a janitor", "lease expired under a writer", "empty segment left the list",
    "segment sealed by the next writer", "unlisted entries discarded", "retry was stored already",
    "retry by another writer", "retry after a roll", "gap in sequences refused",
    "reader crossed a roll", "reader crossed a take-over",
    "truncated under a reader", "truncated in the open segment", "retention truncated", "segment trimmed",
    "bulk step sealed a live segment", "bulk step retried", "stream deleted under a writer", "reply lost on a head",
    "conflict on a head", "broken segment replaced by its writer", "page written", "stream ended", "cursor went on",
    "janitor discarded a ledger", "janitor sealed a segment", "segments compacted", "compacted segment deleted",
    "compaction put off", "crash while compacting", "clocks of a writer and of bookies apart",
    "nothing went by age: clocks apart",
)
