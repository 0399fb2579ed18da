"""The invariants and situations of gateways that lives evaluate and reach."""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "told": "the records of an acknowledged append are at the offsets that its client was told",
    "once": "an append is at most once in its stream, and exactly once if it was acknowledged",
    "refused": "an append that only errors answered, none of which said that its outcome is unknown, changed nothing",
    "key": "another request with the same Idempotency-Key is refused",
    "answers": "no answer says that there is a bug, and none is no HTTP",
    "tail": "a tail has each record once, in order and without a hole, at whichever gateway it goes on",
    "page": "a page has the records from its first offset on, and says where the next one begins",
    "found": "a record that was acknowledged before is found at each gateway",
    "limit": "no more tails and uploads are open than are allowed",
    "files": "calls on files are linearizable by the rules of Hadoop's file systems",
    "objects": "calls on an object are linearizable, and a read gives the bytes of one version",
    "ends": "without faults every call ends, and tails have all records",
}

SITUATIONS = (
    "an answer was lost",
    "a body was cut",
    "a client left before its answer",
    "a request was repeated at the same gateway",
    "a request was repeated at another gateway",
    "a request was redirected",
    "an outcome was told as unknown",
    "an answer came again for its key",
    "a request met another process than it meant",
    "a sequence was stored already",
    "a condition of an append was refused",
    "a gateway died with a request",
    "a gateway stopped in order",
    "a gateway hung and woke",
    "a tail went on at another gateway",
    "a tail was ended by its gateway",
    "a tail was refused by the limit",
    "a page ended within the stream",
    "a directory was listed in pages",
    "an upload was refused by the quota",
    "a call on files was repeated with its marks",
)

__all__ = ["INVARIANTS", "SITUATIONS"]
