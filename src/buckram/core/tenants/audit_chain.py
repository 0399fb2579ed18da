"""The chain of the audit trail: each event of a writer has a number and the digest of the one before. Pure.

A writer is one run of a bookie. A later check finds that an event is missing, was inserted or was changed, except for
the newest event of each writer, and for the oldest ones after retention: a chain then begins with the first event that
is left. Nothing here is signed: whoever may write everything can make a whole chain anew, so keep the newest digests,
or a copy of the events, out of his reach.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from buckram.core.tenants.audit_trail import AuditEvent
from buckram.errors import InvalidArgument

_MOST_BREAKS = 100
"""Maximum number of breaks that are listed of one chain, and of unreadable records; further ones are counted."""
_REMEMBERED = 50_000
"""Number of recent digests by which an event is recognised that was written twice because an answer was lost."""


def digest_of(value: bytes) -> str:
    """Return the digest of an event in its stored form, SHA-256 in hexadecimal digits."""
    return hashlib.sha256(value).hexdigest()


class Links:
    """The chain of one writer, which gives each of its events its place."""

    def __init__(self, chain: str) -> None:
        self.chain = chain
        self._number, self._before = 0, ""

    def add(self, event: AuditEvent) -> AuditEvent:
        """Return the event as the next one of the chain; the place that it had before is replaced."""
        self._number += 1
        event = replace(event, chain=self.chain, number=self._number, before=self._before).bounded()
        self._before = digest_of(event.encode())
        return event


@dataclass(frozen=True, slots=True)
class Break:
    """Events `first` to `last` of a chain are missing, or one of them was changed, seen at `offset` of the trail."""

    what: str
    first: int
    last: int
    offset: int


@dataclass(slots=True)
class Chain:
    """The events of one writer in the trail, as far as they have been checked."""

    chain: str
    bookie: str
    first: int
    first_us: int
    last: int = 0
    last_us: int = 0
    digest: str = ""
    """Digest of the last event. A copy that is kept elsewhere proves later that no event before it was changed."""
    events: int = 0
    repeated: int = 0
    breaks: list[Break] = field(default_factory=list)
    more_breaks: int = 0

    @property
    def whole(self) -> bool:
        return not self.breaks

    def broken(self, what: str, first: int, last: int, offset: int) -> None:
        if len(self.breaks) < _MOST_BREAKS:
            self.breaks.append(Break(what, first, last, offset))
        else:
            self.more_breaks += 1


class ChainCheck:
    """Check of the chains of a trail, record by record.

    `from_start`: nothing was ever removed from the beginning of the trail, so each chain has to begin with 1.
    """

    def __init__(self, *, from_start: bool) -> None:
        self._from_start = from_start
        self.chains: dict[str, Chain] = {}
        self.before_chain, self.unchained_later = 0, 0
        """Number of events in no chain, and of those among them that follow an event that is in one."""
        self.unreadable: list[int] = []
        self.more_unreadable = 0
        self._digests: OrderedDict[tuple[str, int], str] = OrderedDict()

    @property
    def whole(self) -> bool:
        return not self.unreadable and all(chain.whole for chain in self.chains.values())

    def see(self, offset: int, value: bytes) -> None:
        """Check the next record of the trail."""
        try:
            event = AuditEvent.parse(value)
        except InvalidArgument:
            if len(self.unreadable) < _MOST_BREAKS:
                self.unreadable.append(offset)
            else:
                self.more_unreadable += 1
            return
        if not event.chain:
            self.before_chain += 1
            self.unchained_later += bool(self.chains)
            return
        chain = self.chains.get(event.chain)
        if chain is None:
            chain = self.chains[event.chain] = Chain(event.chain, event.bookie, event.number, event.time_us)
            self._begin(chain, event, offset)
        elif event.number <= chain.last:
            self._again(chain, event, digest_of(value), offset)
            return
        elif event.number > chain.last + 1:
            chain.broken("missing", chain.last + 1, event.number - 1, offset)
        elif event.before != chain.digest:
            chain.broken("changed", chain.last, event.number, offset)
        self._take(chain, event, digest_of(value))

    def _begin(self, chain: Chain, event: AuditEvent, offset: int) -> None:
        if event.number == 1 and event.before:
            chain.broken("changed", 1, 1, offset)
        elif event.number > 1 and self._from_start:
            chain.broken("missing", 1, event.number - 1, offset)

    def _again(self, chain: Chain, event: AuditEvent, digest: str, offset: int) -> None:
        """Check an event whose number was seen before: a repetition of the same event, or an inserted one."""
        if self._digests.get((event.chain, event.number)) == digest:
            chain.repeated += 1
        else:
            chain.broken("changed", event.number, event.number, offset)

    def _take(self, chain: Chain, event: AuditEvent, digest: str) -> None:
        chain.last, chain.last_us, chain.digest = event.number, event.time_us, digest
        chain.bookie = chain.bookie or event.bookie
        chain.events += 1
        self._digests[event.chain, event.number] = digest
        if len(self._digests) > _REMEMBERED:
            self._digests.popitem(last=False)


__all__ = ["Break", "Chain", "ChainCheck", "Links", "digest_of"]
