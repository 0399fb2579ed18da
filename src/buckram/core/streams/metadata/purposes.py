"""Purposes: what a stream is for, and what may be done to a stream of each purpose. Pure.

Most streams hold records of their users. Others are the log of a machine, of a database or of a namespace's objects, or
what the cluster writes about itself: whoever deleted, wrote or truncated one of these as a stream would take the
machine, the database or all objects along. `refusal` decides for every interface: Python, the command line, HTTP, Spark
and the metadata service of bookies. A caller that acts for the owner gives the purpose of the stream.

Reading is free, and so are cursors, which belong to readers. Not here: what a mirror takes (`mirrors.py`), permissions
(`core/security/acl.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import OBJECTS_LOG
from buckram.errors import InvalidArgument, MachineLog, StreamPurpose

AUDIT_TRAIL, USAGE_HISTORY = "system/audit", "system/usage"
"""Full names of the streams in which the cluster keeps what it saw of itself."""
DATABASE_PROPERTIES = {"buckram": "database"}
"""Properties of a machine's log that is a database's."""
_MARKS = ("buckram", "cdc")
"""Properties of a machine's log that say what it is, and what a database keeps in it."""


class Purpose(Enum):
    """Purpose of a stream; the value is the word that is shown and that an owner gives."""

    RECORDS = "records"
    """Records of users."""
    MACHINE = "machine"
    """Commands of a replicated machine."""
    DATABASE = "database"
    """Transactions of a database; with change data capture also what they did to rows."""
    OBJECTS = "objects"
    """Changes of the index of a namespace's objects."""
    AUDIT = "audit"
    """The audit trail."""
    USAGE = "usage"
    """The history of the space of all bookies."""


class Act(Enum):
    """Action on a stream; the value is the word that a refusal uses."""

    WRITE = "write"
    """Append, publish a bulk step, import, seal or end."""
    TRUNCATE = "truncate"
    DELETE = "delete"
    FORK = "fork"
    COMPACT = "compact"
    OFFLOAD = "offload"
    EXPORT = "export"
    POLICY = "change the policy of"
    PROPERTIES = "change the properties of"
    SCHEMA = "give a schema to"


_WHAT = {
    Purpose.RECORDS: "holds records",
    Purpose.MACHINE: "is the log of a replicated machine",
    Purpose.DATABASE: "is the log of a database",
    Purpose.OBJECTS: "is the index of all objects of namespace {namespace}",
    Purpose.AUDIT: "is the audit trail",
    Purpose.USAGE: "is the usage history",
}
_LOGS = frozenset({Purpose.MACHINE, Purpose.DATABASE, Purpose.OBJECTS})
_TABLE: Mapping[Purpose, Mapping[Act, str]] = {
    Purpose.RECORDS: dict.fromkeys(Act, ""),
    Purpose.MACHINE: {
        Act.WRITE: "execute commands on the machine (`ns.machine`), only it writes and ends its log",
        Act.TRUNCATE: "the machine frees its log when it has taken a snapshot (`m.snapshot()`)",
        Act.DELETE: "`buckram stream delete {name} --purpose machine` deletes the machine with its snapshots",
        Act.FORK: "a machine has no forks; copy its state into another machine by commands",
        Act.COMPACT: "the machine frees its log by snapshots",
        Act.OFFLOAD: "a machine's log stays on bookies, its snapshots free it",
        Act.EXPORT: "commands are no records; let the machine write what is to be exported into a stream",
        Act.POLICY: "",
        Act.PROPERTIES: "",
        Act.SCHEMA: "the machine alone says what its commands are",
    },
    Purpose.DATABASE: {
        Act.WRITE: "execute SQL on the database (`buckram db shell {name}`), only it writes and ends its log",
        Act.TRUNCATE: "the database frees its log by snapshots; delete rows with `buckram db shell {name}`",
        Act.DELETE: "`buckram db drop {name}` deletes the database",
        Act.FORK: "`buckram db fork {name} NEW` makes a database of it",
        Act.COMPACT: "the database frees its log by snapshots",
        Act.OFFLOAD: "`buckram db backup {name} FILE` keeps a copy elsewhere",
        Act.EXPORT: "`buckram db backup {name} FILE` writes its tables, `buckram db changes {name}` changes of rows",
        Act.POLICY: "",
        Act.PROPERTIES: "",
        Act.SCHEMA: "its tables have the schema: `buckram db shell {name}`",
    },
    Purpose.OBJECTS: {
        Act.WRITE: "`buckram object put` and `buckram object delete` change objects, only they write and end the index",
        Act.TRUNCATE: "the index frees its log by snapshots; delete objects with `buckram object delete`",
        Act.DELETE: "`buckram object delete --recursive` deletes objects by their names; `buckram stream delete {name} "
        "--purpose objects` deletes the index with all of them",
        Act.FORK: "`buckram object copy` puts an object under another name",
        Act.COMPACT: "the index frees its log by snapshots",
        Act.OFFLOAD: "the index stays on bookies, its snapshots free its log",
        Act.EXPORT: "`buckram object list` and `buckram object get` read objects",
        Act.POLICY: "",
        Act.PROPERTIES: "it has none",
        Act.SCHEMA: "the index alone says what is in its log",
    },
    Purpose.AUDIT: {
        Act.WRITE: "bookies alone write it ([auth] audit)",
        Act.TRUNCATE: "old events are deleted by retention: `buckram stream set {name} --set retention_s=90d`",
        Act.DELETE: "old events are deleted by retention (`buckram stream set {name} --set retention_s=90d`); "
        "`buckram stream delete {name} --purpose audit` deletes all of it",
        Act.FORK: "",
        Act.COMPACT: "",
        Act.OFFLOAD: "",
        Act.EXPORT: "",
        Act.POLICY: "",
        Act.PROPERTIES: "",
        Act.SCHEMA: "its events have a form of their own",
    },
    Purpose.USAGE: {
        Act.WRITE: "`buckram plan record` writes it",
        Act.TRUNCATE: "",
        Act.DELETE: "",
        Act.FORK: "",
        Act.COMPACT: "",
        Act.OFFLOAD: "",
        Act.EXPORT: "",
        Act.POLICY: "",
        Act.PROPERTIES: "",
        Act.SCHEMA: "its samples have a form of their own",
    },
}


def purpose_of(name: str, head: Head) -> Purpose:
    """Return what the stream NAMESPACE/STREAM with this head is for. It stays that as long as the stream exists."""
    if head.snapshots is not None:
        if name.partition("/")[2] == OBJECTS_LOG:
            return Purpose.OBJECTS
        return Purpose.DATABASE if DATABASE_PROPERTIES.items() <= head.properties.items() else Purpose.MACHINE
    return {AUDIT_TRAIL: Purpose.AUDIT, USAGE_HISTORY: Purpose.USAGE}.get(name, Purpose.RECORDS)


def purpose_named(word: str) -> Purpose:
    """Return the purpose that a caller gives. Raises InvalidArgument for another word."""
    try:
        return Purpose(word)
    except ValueError:
        known = ", ".join(one.value for one in Purpose)
        raise InvalidArgument(f"purpose {word!r}: needs one of {known}") from None


def refusal(name: str, purpose: Purpose, act: Act, acting_for: Purpose = Purpose.RECORDS) -> str:
    """Return why the act is refused, with the command that is right; "" if it is allowed.

    `acting_for`: the purpose for which the caller acts. Its owner may do everything to a stream.
    """
    if acting_for is purpose:
        return ""
    what = _WHAT[purpose].format(namespace=name.partition("/")[0])
    if acting_for is not Purpose.RECORDS:
        return f"{what}, so its purpose is {purpose.value}, not {acting_for.value}"
    right = _TABLE[purpose][act].format(name=name)
    return right and f"{what}, which nobody may {act.value} as a stream: {right}"


def refusals(name: str, purpose: Purpose) -> dict[str, str]:
    """Return why each act is refused that nobody may do to a stream of this purpose, by words such as `truncate`."""
    found = {act.name.lower(): refusal(name, purpose, act) for act in Act}
    return {act: why for act, why in found.items() if why}


def check_act(name: str, head: Head, act: Act, acting_for: Purpose = Purpose.RECORDS) -> None:
    """Raise MachineLog or StreamPurpose unless the act is allowed on the stream with this head."""
    purpose = purpose_of(name, head)
    if why := refusal(name, purpose, act, acting_for):
        raise (MachineLog if purpose in _LOGS else StreamPurpose)(name, why)


def check_marks(name: str, head: Head, properties: Mapping[str, Any]) -> None:
    """Raise MachineLog for other properties that would make another thing of a machine's or database's log."""
    if head.snapshots is None:
        return
    for key in _MARKS:
        if properties.get(key) != head.properties.get(key):
            what = _WHAT[purpose_of(name, head)].format(namespace=name.partition("/")[0])
            raise MachineLog(name, f"{what}: property {key!r} says what it is, and never changes; choose another name")


def change_refusal(name: str, before: Head, after: Head | None) -> str:
    """Return why nobody may replace one head by another in the metadata, or delete it (None); "" if that is allowed.

    The head itself names the purpose of a deletion, so that the metadata service can distinguish an owner's deletion
    from one that takes a machine, a database or all objects for records.
    """
    purpose = purpose_of(name, before)
    if after is not None and purpose_of(name, after) is not purpose:
        return f"it {_WHAT[purpose].format(namespace=name.partition('/')[0])}, and stays it"
    begins = not before.deleting and (after is None or after.deleting)
    if not begins or (after is not None and after.deleted_for == purpose.value):
        return ""
    return refusal(name, purpose, Act.DELETE)
