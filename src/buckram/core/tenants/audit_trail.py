"""Events of the audit trail: who did what to which object, through which bookie, and whether it was allowed. Pure.

Texts in events come from others: each is cut to a size, the JSON is ASCII, and `shown` gives a single line.

Events form chains: each event of a writer, which is one run of a bookie, has a number and the digest of the one before.
A later check finds that an event is missing, was inserted or was changed, except for the newest event of each writer,
and for the oldest ones after retention: a chain then begins with the first event that is left. Nothing here is signed:
a person who may write everything can make a whole chain anew, so keep the newest digests, or a copy of the events, out
of that person's reach.

The first few refusals of a principal in an interval are events; the others are counted by their kind. The number of
principals is bounded, too: further ones share one name. So a million refusals do not fill the trail, and each of them
is in it as an event or in a count.

Not here: recording events (`bookie/accounting/audit_queue.py`), writing them (`cli/security/audit_writer.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from buckram.core.streams.records.batch import Record

NAMESPACE, STREAM = "system", "audit"

REFUSALS, LOST = "refusals", "lost"

ACTIONS = (
    "login",
    "create",
    "delete",
    "truncate",
    "fence",
    "recover",
    "policy",
    "quota",
    "grant",
    "revoke",
    "deny",
    "undeny",
    "token",
    "certificate",
    "accept",
    "found foreign",
    "read",
    "append",
    "list",
    REFUSALS,
    LOST,
)
"""Actions of events. `login`, `read`, `append` and `list` are recorded when they are refused; `refusals` counts further
refusals of a principal, and `lost` counts events that were not kept because the trail could not be written."""

DONE, REFUSED = "done", "refused"

MOST_TEXT = 500
"""Maximum characters of one text field, as encoded in JSON."""

MOST_BYTES = 9 * MOST_TEXT
"""Maximum bytes of one encoded event."""

_CUT = "..."

_MOST_ESCAPED = 12
"""Maximum characters that JSON needs for one character: a pair of surrogates, escaped."""

_SHORT, _PLAIN = MOST_TEXT // _MOST_ESCAPED, MOST_TEXT // 2
"""Maximum characters of a text that always fits: of any text, and of one of which JSON escapes no character by more
than a backslash.
"""


_MOST_US = 253_402_300_800_000_000
"""Upper bound of times, exclusive: the year 10000, in microseconds since 1970."""

_LINKS = ("chain", "number", "before")


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event. `what` names the object, such as `stream shop/orders`; `namespace` is "" if it belongs to none.

    `chain`: the writer whose chain it is in ("": written by a release without chains); `number`: its place there,
    from 1; `before`: the digest of the event before it.
    """

    time_us: int
    principal: str
    action: str
    what: str
    namespace: str = ""
    result: str = DONE
    peer: str = ""
    bookie: str = ""
    detail: str = ""
    chain: str = ""
    number: int = 0
    before: str = ""
    _encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """Result of `encode`, kept; no event that is made of this one has it."""

    def row(self) -> dict[str, Any]:
        """Return the fields by name; without those of the chain if it is in none."""
        return {name: getattr(self, name) for name in _NAMES if self.chain or name not in _LINKS}

    def encode(self) -> bytes:
        """Return the stored form, made once: the chain needs it when the event is noted, and the writer later."""
        value = self._encoded
        if value is None:
            value = _json(self.bounded().row()).encode()
            object.__setattr__(self, "_encoded", value)
        return value

    @classmethod
    def parse(cls, value: bytes) -> AuditEvent:
        """Parse an event. Raises InvalidArgument for anything that `encode` did not make."""
        try:
            raw = json.loads(value)
            texts = {name: str(raw.get(name, "")) for name in _TEXTS}
            event = cls(int(raw["time_us"]), number=int(raw.get("number", 0)), **texts)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"no event of the audit trail: {error!r}"[:MOST_TEXT]) from None
        if not 0 <= event.time_us < _MOST_US or (event.number < 1 if event.chain else event.number != 0):
            raise InvalidArgument(f"no event of the audit trail: time_us {event.time_us}, number {event.number}")
        return event

    @classmethod
    def of_record(cls, record: Record) -> AuditEvent:
        """Return the event of a record; of one that is none, an event that says so."""
        try:
            return cls.parse(record.value or b"")
        except InvalidArgument:
            return cls(record.timestamp, "", LOST, f"record {record.offset}", detail="it is no event of the trail")

    def placed(self, chain: str, number: int, before: str) -> AuditEvent:
        """Return the event with this place in a chain."""
        who = self.time_us, self.principal, self.action, self.what, self.namespace
        return AuditEvent(*who, self.result, self.peer, self.bookie, self.detail, chain, number, before)

    def bounded(self) -> AuditEvent:
        """Return the event with each text cut to MOST_TEXT."""
        cut: dict[str, Any] = {}
        for name in _TEXTS:
            text = getattr(self, name)
            if len(text) > _SHORT and (short := bounded(text)) is not text:
                cut[name] = short
        return replace(self, **cut) if cut else self

    def matches(self, *, principal: str = "", action: str = "", namespace: str = "", what: str = "") -> bool:
        """Return whether the event has this principal, action and namespace, and this text in the name of its object;
        an empty argument matches every event."""
        return (
            (not principal or self.principal == principal)
            and (not action or self.action == action)
            and (not namespace or self.namespace == namespace)
            and what in self.what
        )


_NAMES = tuple(field.name for field in fields(AuditEvent) if field.init)

_TEXTS = tuple(name for name in _NAMES if name not in ("time_us", "number"))


def _json(value: Any) -> str:
    """Return JSON in ASCII without control characters."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def bounded(text: str) -> str:
    """Return a text of an event, cut if JSON would need more than MOST_TEXT characters for it."""
    if len(text) <= _SHORT or (len(text) <= _PLAIN and text.isascii() and text.isprintable()):
        return text
    if len(text) <= MOST_TEXT and len(_json(text)) - 2 <= MOST_TEXT:
        return text
    room = MOST_TEXT - len(_CUT)
    cut = text[:room]
    while (size := len(_json(cut)) - 2) > room:
        cut = cut[: len(cut) * room // size]
    return cut + _CUT


def shown(text: str) -> str:
    """Return a text for a line of words with two spaces between: no control character, no line break, and nothing that
    looks like the next word."""
    if text.isprintable() and "\\" not in text and "  " not in text and text == text.strip(" "):
        return text
    last = len(text) - 1
    return "".join(
        _escaped(char) if char == " " and (at in (0, last) or text[at - 1] == " ") else _shown(char)
        for at, char in enumerate(text)
    )


def _shown(char: str) -> str:
    if char == "\\":
        return "\\\\"
    return char if char.isprintable() else _escaped(char)


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# -- the chain of events --------------------------------------------------------------------------------------

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
        event = event.placed(self.chain, self._number, self._before).bounded()
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


# -- refused requests -----------------------------------------------------------------------------------------

FIRST = 5
"""Number of refusals of a principal in an interval that are events of their own."""

INTERVAL_US = 60_000_000

MOST_PRINCIPALS = 500

OTHERS = "other principals"
"""Name under which principals beyond MOST_PRINCIPALS are counted. It is no principal's: those have a colon, or are
"anonymous"."""


class Counted(NamedTuple):
    """Number of refusals of a principal that became no events, by their kind; `within_us`: length of the interval."""

    principal: str
    kinds: Mapping[str, int]
    within_us: int


class Refusals:
    """Refusals of the present interval. Kinds are few, and chosen by the bookie."""

    def __init__(self, first: int = FIRST, interval_us: int = INTERVAL_US, most: int = MOST_PRINCIPALS) -> None:
        self._first, self._interval_us, self._most = first, interval_us, most
        self._began_us = 0
        self._seen: Counter[str] = Counter()
        self._more: dict[str, Counter[str]] = {}

    def noted(self, now_us: int, principal: str, kind: str, *, room: bool) -> bool:
        """Return whether a refusal becomes an event; otherwise count it. Without `room` none becomes an event."""
        if not self._seen:
            self._began_us = now_us
        name = principal if principal in self._seen or len(self._seen) < self._most else OTHERS
        self._seen[name] += 1
        if room and self._seen[name] <= self._first:
            return True
        self._more.setdefault(name, Counter())[kind] += 1
        return False

    def over(self, now_us: int) -> bool:
        """Return whether the interval has ended; one that begins in the future has, since the clock was set back."""
        return bool(self._seen) and not self._began_us <= now_us < self._began_us + self._interval_us

    def take(self, now_us: int) -> list[Counted]:
        """End the interval, and return the counts of it."""
        within = max(now_us - self._began_us, 0)
        found = [Counted(name, kinds, within) for name, kinds in self._more.items()]
        self._seen.clear()
        self._more.clear()
        return found
