"""The invariants and situations of objects that lives evaluate and reach."""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "names": "each replica of the index has, after each command, the names, bytes and results of an independent fold",
    "history": "calls on names are linearizable, also conditions, uploads and renames of directories in one step",
    "bytes": "a read gives the bytes of one version that was there between call and return, and no others",
    "damaged": "a read fails for bytes that are gone only if a ledger was deleted meanwhile",
    "live": "no ledger is deleted that an object or an open upload has bytes in, and no such bytes get a name",
    "grace": "by time, a ledger is deleted no sooner than the grace after the last object left it",
    "gone": "the index forgets a ledger only when it is deleted",
    "space": "in the end the ledgers that are left are those that objects and open uploads use, and open packs; none is"
    " open when all handles are closed",
    "early": "nothing expires, and no upload is left, before its time by an honest clock",
    "late": "what has expired is gone once clocks are right, with its space",
    "deleted": "of a store that was deleted nothing is left, once leftovers and orphans were looked for",
    "ends": "without faults every call ends with a result or a refusal, and the store can be used",
}

SITUATIONS = (
    "a pack was rewritten",
    "a pack was rewritten while it was read",
    "an object was replaced while it was read",
    "an object was deleted while it was read",
    "an object was renamed while it was read",
    "a read met a ledger that was deleted",
    "a large object was put",
    "a put was cancelled",
    "a put without an answer took effect",
    "a put was cancelled as its ledger began",
    "a process died in a call",
    "a process died in a sweep",
    "a process hung and woke",
    "a writer passed for gone while it lived",
    "bytes were refused as given up",
    "an unknown ledger was taken over",
    "an upload was completed by another process",
    "a part was replaced",
    "a part was put beside the completion",
    "a condition was refused",
    "a name was blocked",
    "a directory was renamed",
    "a directory was renamed beside a put in it",
    "a directory was removed with its content",
    "a snapshot was restored",
    "a sweep freed space by time",
    "a sweep freed space at once",
    "an object expired",
    "an upload was left for a week",
    "clocks jumped",
    "a time was in doubt and settled",
    "a store was deleted beside it",
)

__all__ = ["INVARIANTS", "SITUATIONS"]
