"""Shared ledgers in a copy that was read key by key: each is held by the streams that list it in the copy.

While a copy is made, forks come and go. A stream whose list was read first may have let a ledger go before the keys
below that ledger were read. After a restore the ledger would look like one of the other stream alone, which deletes it
one day, although the first one lists it again. And a stream that began later may hold a ledger, of which the copy has
nothing else: that ledger would stay for ever. Pure. Not here: what holding means (`streams/shared/shared_ledgers.py`),
reading the keys (`metadata/maintain/backup.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from buckram.core.streams.metadata.head import HISTORY, Head, decode_head, decode_page
from buckram.errors import MalformedRecord
from buckram.types import LedgerId


@dataclass(slots=True)
class _Stream:
    """A stream of the copy: its name, whether it is a fork, and the ledgers in its list, its table and its garbage."""

    name: str
    fork: bool
    lists: set[LedgerId] = field(default_factory=set)


def wrong_holders(
    values: Mapping[str, bytes], own: str, ledgers: Mapping[LedgerId, str]
) -> tuple[dict[str, bytes], set[str]]:
    """Return the keys that lack, with their values, and those that no stream of the copy needs.

    `values`: all keys of the copy. `own`: prefix of Buckram's keys. `ledgers`: the key of each ledger's record.
    """
    streams, whole = _streams(values, own)
    mentions: dict[LedgerId, set[str]] = {}
    for uid, stream in streams.items():
        for ledger in stream.lists:
            mentions.setdefault(ledger, set()).add(uid)
    for uid, ledger in _intents(values, own):
        mentions.setdefault(ledger, set()).add(uid)
    records = {key: ledger for ledger, key in ledgers.items()}
    held: dict[LedgerId, set[str]] = {}
    for key in values:
        parent, _, uid = key.rpartition("/")
        if (below := records.get(parent)) is not None:
            held.setdefault(below, set()).add(uid)
    lacking: dict[str, bytes] = {}
    unknown: set[str] = set()
    shared = {*held, *(ledger for ledger, uids in mentions.items() if len(uids) > 1)}
    for ledger in sorted(shared & ledgers.keys()):
        present = held.get(ledger, set())
        for uid in sorted(mentions.get(ledger, set()) - present):
            if uid in streams and ledger in streams[uid].lists:
                lacking[f"{ledgers[ledger]}/{uid}"] = streams[uid].name.encode()
                mark = f"{own}/streams/data/{uid}/shared/{ledger:019d}"
                if streams[uid].fork and mark not in values:
                    lacking[mark] = b""
        if whole:  # A head that cannot be read may be that of a stream which holds it.
            unknown |= {f"{ledgers[ledger]}/{uid}" for uid in present if uid not in streams}
    return lacking, unknown


def _streams(values: Mapping[str, bytes], own: str) -> tuple[dict[str, _Stream], bool]:
    """Return the streams of the copy by their uids, and whether all heads and pages of it can be read."""
    found: dict[str, _Stream] = {}
    whole = True
    for name, key in _below(values, f"{own}/streams/heads/"):
        if name.count("/") != 1:
            continue
        try:
            head = decode_head(key, values[key])
        except MalformedRecord:
            whole = False
            continue
        found[head.uid] = _Stream(name, head.fork is not None, set(_listed(head)))
    for name, key in _below(values, f"{own}/streams/data/"):
        uid, _, page = name.partition("/pages/")
        if page and uid in found:
            try:
                rows = decode_page(key, values[key]).segments
            except MalformedRecord:
                whole = False
                continue
            found[uid].lists |= {row.ledger for row in rows if row.kind != HISTORY}
    return found, whole


def _listed(head: Head) -> Iterator[LedgerId]:
    yield from (row.ledger for row in head.tail if row.kind != HISTORY)
    yield from head.garbage
    if head.table is not None:
        yield head.table.ledger


def _intents(values: Mapping[str, bytes], own: str) -> Iterator[tuple[str, LedgerId]]:
    """Return the streams, by uid, that have an intent of a ledger: one replaced by a copy has it until it goes."""
    for name, _ in _below(values, f"{own}/streams/data/"):
        uid, _, ledger = name.partition("/intents/")
        if ledger.isdigit():
            yield uid, int(ledger)


def _below(values: Mapping[str, bytes], folder: str) -> Iterator[tuple[str, str]]:
    for key in values:
        if key.startswith(folder):
            yield key.removeprefix(folder), key
