"""Events of the audit trail: who did what to which object, through which bookie, and whether it was allowed. Pure.

Texts in events come from others: each is cut to a size, the JSON is ASCII, and `shown` gives a single line.
Not here: recording them (`bookie/accounting/audit_queue.py`), writing and reading them (`audit`), their chain
(`core/tenants/audit_chain.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

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

    def row(self) -> dict[str, Any]:
        """Return the fields by name; without those of the chain if it is in none."""
        return {name: getattr(self, name) for name in _NAMES if self.chain or name not in _LINKS}

    def encode(self) -> bytes:
        return _json(self.bounded().row()).encode()

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

    def bounded(self) -> AuditEvent:
        """Return the event with each text cut to MOST_TEXT."""
        cut: dict[str, Any] = {name: bounded(getattr(self, name)) for name in _TEXTS}
        return replace(self, **cut)

    def matches(self, *, principal: str = "", action: str = "", namespace: str = "", what: str = "") -> bool:
        """Return whether the event has this principal, action and namespace, and this text in the name of its object;
        an empty argument matches every event."""
        return (
            (not principal or self.principal == principal)
            and (not action or self.action == action)
            and (not namespace or self.namespace == namespace)
            and what in self.what
        )


_NAMES = tuple(field.name for field in fields(AuditEvent))
_TEXTS = tuple(name for name in _NAMES if name not in ("time_us", "number"))


def _json(value: Any) -> str:
    """Return JSON in ASCII without control characters."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def bounded(text: str) -> str:
    """Return a text of an event, cut if JSON would need more than MOST_TEXT characters for it."""
    if len(text) <= MOST_TEXT // _MOST_ESCAPED:
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


__all__ = [
    "ACTIONS",
    "DONE",
    "LOST",
    "MOST_BYTES",
    "MOST_TEXT",
    "NAMESPACE",
    "REFUSALS",
    "REFUSED",
    "STREAM",
    "AuditEvent",
    "bounded",
    "shown",
]
