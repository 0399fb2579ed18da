"""The LAYOUT node: which ledger manager a cluster uses. Reading, writing and choosing; pure.

Formats: 2 names a Java factory class, 1 (older than 4.2) a short name. Apache's processes make the node when they find
none; store does, when it makes the first ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.errors import MalformedRecord, WrongLedgerManager
from buckram.metadata.zookeeper.ledger_managers import FLAT, HIERARCHICAL, MANAGERS, Manager

FORMAT, OLDEST_FORMAT = 2, 1
MANAGER_VERSION = 1
_SHORT_NAMES = {"flat": FLAT, "hierarchical": HIERARCHICAL}
_KEPT = "nothing was changed"


@dataclass(frozen=True, slots=True)
class LedgerLayout:
    """Content of the node; `factory` is a class name in format 2, flat or hierarchical in format 1."""

    factory: str
    manager_version: int = MANAGER_VERSION
    format: int = FORMAT


def serialise_layout(manager: Manager) -> bytes:
    return f"{FORMAT}\n{manager.factory}:{MANAGER_VERSION}".encode()


def parse_layout(node: str, record: bytes) -> LedgerLayout:
    """Parse the node; lines after the second are ignored.

    Raises MalformedRecord, which names the node, what it holds and what to do.
    """
    lines = record.decode("utf-8", "backslashreplace").split("\n")
    if lines[0].strip() not in ("1", "2"):
        raise MalformedRecord(
            f"{node}: layout format {lines[0][:40]!r}, this Buckram reads {OLDEST_FORMAT} and {FORMAT}: the cluster "
            f"belongs to other software or to a newer one, use that; {_KEPT}"
        )
    parts = lines[1].split(":") if len(lines) > 1 else []
    version = parts[1].strip() if len(parts) == 2 else ""
    if len(parts) != 2 or not parts[0] or not (version.removeprefix("-").isdecimal() and version.isascii()):
        shown = lines[1][:80] if len(lines) > 1 else ""
        raise MalformedRecord(
            f"{node}: the second line is {shown!r}, it should be like {HIERARCHICAL.factory}:1; restore the node from "
            f"a backup of ZooKeeper; {_KEPT}"
        )
    return LedgerLayout(parts[0], int(version[:10]), int(lines[0]))


def manager_of(node: str, layout: LedgerLayout) -> Manager:
    """Return the manager that a layout names, also under a shaded class name.

    Raises MalformedRecord for one that is not known.
    """
    if layout.format == OLDEST_FORMAT:
        manager = _SHORT_NAMES.get(layout.factory)
    else:
        manager = next((known for known in MANAGERS.values() if _is(layout.factory, known.factory)), None)
    if manager is None:
        raise MalformedRecord(
            f"{node}: ledger manager {layout.factory[:120]!r} is not one of {', '.join(MANAGERS)}: its ledgers are "
            f"kept in a way that Buckram does not know; {_KEPT}"
        )
    if layout.manager_version != MANAGER_VERSION:
        raise MalformedRecord(
            f"{node}: version {layout.manager_version} of the {manager.name} ledger manager, this Buckram knows "
            f"version {MANAGER_VERSION}: the cluster was made by newer software, use that; {_KEPT}"
        )
    return manager


def _is(name: str, known: str) -> bool:
    # Shaded jars put a prefix before the package.
    return name == known or name.endswith("." + known)


def choose_manager(node: str, record: bytes | None, wanted: Manager | None) -> Manager:
    """Return the manager to use: the one in LAYOUT, which must be the wanted one if there is one.

    Without LAYOUT (as Pulsar's set-up leaves a cluster) it is hierarchical, and asking for another one is an error:
    ledgers that are there would not be found, and bookies would take them for deleted.
    """
    found = HIERARCHICAL if record is None else manager_of(node, parse_layout(node, record))
    if wanted is None or wanted.name == found.name:
        return found
    says = "is missing, which means hierarchical" if record is None else f"says {found.name}"
    raise WrongLedgerManager(
        f"{node} {says}, but the metadata URI asks for the {wanted.name} ledger manager: use zk://..., which takes "
        f"what is there; {_KEPT}"
    )
