"""The invariants and situations of replication between clusters that lives evaluate and reach."""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "kept": "each acknowledged record is in the end in exactly one place that the tool names",
    "same": "a record in a mirror, or kept aside, has the offset and all the bytes that it had in the source",
    "fence": "the side that was fenced acknowledges nothing from the offset on at which it was fenced",
    "told": "where both sides acknowledged at one offset, the promotion has said so: missing, differing or unknown",
    "source": "a mirror has no record that was not appended to its source, or below the end of the one that was fenced",
    "once": "a record that its producer repeats, also after a promotion, is stored once",
    "ahead": "no cursor, position or progress of a mirror, and no truncation, is ahead of its records",
    "links": "the epoch of a link only grows, and a side that was promoted or superseded is one until it is reconciled",
    "marks": "a stream that was superseded takes no record again, and one that was promoted is no mirror again",
    "refused": "no promotion without force while the other side is reached, and no copy over a side that writes",
    "equal": "without faults the mirror is equal in the end: records, cursors, truncation, grants",
    "ends": "without faults every call ends, and whatever was interrupted is completed by the next call",
}

SITUATIONS = (
    "a copy was killed",
    "a promotion was killed",
    "a reconciling was killed",
    "two copies at once",
    "a copy was refused",
    "a promotion without the other side",
    "a promotion with the other side",
    "a promotion lacked records",
    "a promotion without force was refused",
    "a writer was fenced by a promotion",
    "both sides acknowledged",
    "records were kept aside",
    "a source went back",
    "a copy noticed that the source went back",
    "a mirror was begun anew, its own records kept",
    "a promotion told where the source differs",
    "a truncation overtook a copy",
    "a stream was deleted and created anew",
    "a copy noticed a stream that was created anew",
    "the sides changed back",
    "the link was cut one way",
    "the link was cut both ways",
    "a repetition was recognised after a promotion",
)
