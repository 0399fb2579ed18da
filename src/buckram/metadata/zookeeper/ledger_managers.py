"""Ledger ids as nodes below the ledgers root, as Apache's four managers lay them out, and the LAYOUT node. Pure.

A manager keeps ledgers in one or two forms of digits cut into levels; the walk through them determines which nodes to
read next and which ids they hold. Names that are no part of the tree never become ids: a stray node must not turn into
a ledger.

The LAYOUT node tells which manager a cluster uses. Its format 2 names a Java factory class, format 1 (older than 4.2) a
short name. Apache's processes make the node when they find none; ours is made with the first ledger.

Not here: reading nodes (`metadata/zookeeper/ledger_tree.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from buckram.errors import InvalidArgument, MalformedRecord, WrongLedgerManager
from buckram.metadata.tree.layout import ClusterLayout
from buckram.types import MAX_LEDGER_ID, LedgerId

SHORT_LIMIT = 2**31 - 1
"""First id that the hierarchical manager keeps in the long form."""

SPECIAL = ("available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen", "idgen-long")
"""Children of the root that are no ledgers, besides the flat manager's ID- nodes."""

HEALTH_CHECK_SWITCH = "disableHealthCheck"
"""Node of Apache's that disables health checks; Apache's nukeexistingcluster takes it for a foreign node."""

RACK_MAP = "bookies"
"""Node in which Apache's operators keep the rack mapping; Apache, too, does not know the node itself."""

ID_PREFIX = "ID-"

OWN_KEYS = "/buckram"
"""Node below which all of Buckram's own keys are, for all clusters of a ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write an id: zero-padded to the sum of `widths`, cut at them, the last part behind an L.

    It holds the ids from `first` to `last`. With one level longer ids just have more digits.
    """

    widths: tuple[int, ...]
    first: LedgerId
    last: LedgerId

    def path(self, ledger_id: LedgerId) -> str:
        digits, parts, start = self._digits(ledger_id), [], 0
        for width in self.widths[:-1]:
            parts.append(digits[start : start + width])
            start += width
        return "/".join((*parts, "L" + digits[start:]))

    def leaf(self, prefix: str, name: str) -> LedgerId | None:
        """Return the id of leaf `name` in the directory of the digits `prefix`; None for a stray."""
        digits = name[1:]
        if name[:1] != "L" or not _is_number(digits) or len(prefix) + len(digits) > 19:
            return None
        ledger_id = int(prefix + digits)
        if not self.first <= ledger_id <= self.last or len(prefix + digits) != len(self._digits(ledger_id)):
            return None
        return ledger_id

    def _digits(self, ledger_id: LedgerId) -> str:
        return f"{ledger_id:0{sum(self.widths)}d}"

    def span(self, prefix: str) -> tuple[LedgerId, LedgerId]:
        """Return the first and last id that can be below the digits `prefix`, within what this form holds."""
        unit = 10 ** (sum(self.widths) - len(prefix))
        low = int(prefix) * unit
        return max(low, self.first), min(low + unit - 1, self.last)


_SHORT = Form((2, 4, 4), 0, SHORT_LIMIT - 1)

_LONG = Form((3, 4, 4, 4, 4), SHORT_LIMIT, MAX_LEDGER_ID)


@dataclass(frozen=True, slots=True)
class Manager:
    """One of Apache's ledger managers. `name` as in a URI, `factory` as in LAYOUT.

    `short_ids`: ids come from the 31-bit counter only. `removes_parents`: a deletion takes empty parents along.
    """

    name: str
    factory: str
    forms: tuple[Form, ...]
    short_ids: bool
    removes_parents: bool
    id_folder: str = "idgen"
    """Folder in which the sequence nodes of id generation appear; empty for the root itself."""

    def path(self, ledger_id: LedgerId) -> str:
        """Return the node's path below the root. Raises InvalidArgument for an id that this manager cannot keep."""
        for form in self.forms:
            if form.first <= ledger_id <= form.last:
                return form.path(ledger_id)
        raise InvalidArgument(
            f"ledger id {ledger_id}: must be between {self.forms[0].first} and {self.forms[-1].last} "
            f"in a cluster with the {self.name} ledger manager"
        )

    def ledger_id(self, path: str) -> LedgerId | None:
        """Return the id in a path below the root; None if that is no ledger of this manager."""
        *folders, leaf = path.split("/")
        for form in self.forms:
            if len(folders) + 1 == len(form.widths) and all(
                _is_number(name) and len(name) == width for name, width in zip(folders, form.widths, strict=False)
            ):
                found = form.leaf("".join(folders), leaf)
                if found is not None:
                    return found
        return None


_META = "org.apache.bookkeeper.meta."

FLAT = Manager(
    "flat",
    _META + "FlatLedgerManagerFactory",
    (Form((10,), 0, MAX_LEDGER_ID),),
    short_ids=True,
    removes_parents=False,
    id_folder="",
)

HIERARCHICAL = Manager(
    "hierarchical", _META + "HierarchicalLedgerManagerFactory", (_SHORT, _LONG), short_ids=False, removes_parents=True
)

LONG_HIERARCHICAL = Manager(
    "longhierarchical",
    _META + "LongHierarchicalLedgerManagerFactory",
    (Form(_LONG.widths, 0, MAX_LEDGER_ID),),
    short_ids=False,
    removes_parents=True,
)

LEGACY_HIERARCHICAL = Manager(
    "legacyhierarchical",
    _META + "LegacyHierarchicalLedgerManagerFactory",
    (Form(_SHORT.widths, 0, 10**10 - 1),),
    short_ids=True,
    removes_parents=False,
)

MANAGERS = {manager.name: manager for manager in (HIERARCHICAL, LONG_HIERARCHICAL, FLAT, LEGACY_HIERARCHICAL)}


@dataclass(frozen=True, slots=True)
class ApacheLayout(ClusterLayout):
    """The keys of a cluster in Apache's layout."""

    manager: Manager = HIERARCHICAL

    def ledger(self, ledger_id: LedgerId) -> str:
        return f"{self.root}/{self.manager.path(ledger_id)}"

    def ledger_of(self, key: str) -> LedgerId | None:
        inside = key.removeprefix(self.root + "/")
        return None if inside == key else self.manager.ledger_id(inside)


def root_problem(root: str) -> str | None:
    """Return why no cluster can be at this path; None if one can."""
    if root.endswith("/"):
        return f"{root!r} ends with a slash: leave it out, the nodes would be others than Apache's"
    parts = root.split("/")
    if parts[0] or any(part in ("", ".", "..") for part in parts[1:]) or not root.isprintable():
        return f"{root!r} is not an absolute path of ZooKeeper nodes"
    if "?" in root or "#" in root:
        return f"{root!r}: options have no place in the path"
    if parts[1] == OWN_KEYS[1:]:
        return f"{OWN_KEYS} holds Buckram's own keys, choose another root"
    return None


def own_root(root: str) -> str:
    """Return the folder of Buckram's own keys of the cluster at `root`: one a cluster, also for roots inside each
    other.
    """
    return f"{OWN_KEYS}/{root[1:].replace('%', '%25').replace('/', '%2F')}"


def is_special(name: str) -> bool:
    """Return whether Apache knows this child of the root as something that is not a ledger."""
    return name in SPECIAL or name.startswith(ID_PREFIX)


@dataclass(frozen=True, slots=True)
class Folder:
    """A node whose children are to be read. `path` is below the root, empty for the root itself."""

    path: str = ""
    prefix: str = ""
    form: Form | None = None
    level: int = 0


@dataclass(slots=True)
class FolderListing:
    """Sorted children of a folder: ledgers and folders, both ascending, and names that belong to neither."""

    ids: list[LedgerId]
    folders: list[Folder]
    strays: list[str]


def sort_children(manager: Manager, folder: Folder, names: Sequence[str], after: LedgerId = -1) -> FolderListing:
    """Tell the children of a folder apart. Ledgers up to `after`, and folders that hold no others, are left out."""
    found = FolderListing([], [], [])
    for name in names:
        for form in manager.forms if folder.form is None else (folder.form,):
            if folder.level == len(form.widths) - 1:
                ledger_id = form.leaf(folder.prefix, name)
                if ledger_id is not None:
                    if ledger_id > after:
                        found.ids.append(ledger_id)
                    break
            elif len(name) == form.widths[folder.level] and _is_number(name):
                prefix = folder.prefix + name
                low, high = form.span(prefix)
                if low > high:
                    continue  # this form keeps no such ids: a stray
                if high > after:
                    path = f"{folder.path}/{name}" if folder.path else name
                    found.folders.append(Folder(path, prefix, form, folder.level + 1))
                break
        else:
            if folder.path or not is_special(name):
                found.strays.append(f"{folder.path}/{name}" if folder.path else name)
    found.ids.sort()
    found.folders.sort(key=_low)
    return found


def _low(folder: Folder) -> LedgerId:
    return 0 if folder.form is None else folder.form.span(folder.prefix)[0]


class Walk:
    """Goes through all ledgers in ascending order: determines which folders to read next and collects the ids found.

    Folders may be read several at a time; what lies behind one that is not read yet has to wait.
    """

    def __init__(self, manager: Manager, after: LedgerId = -1) -> None:
        self._manager, self._after = manager, after
        self._front: deque[Folder | list[LedgerId]] = deque([Folder()])
        self._reading: list[Folder | list[LedgerId]] = []
        self.strays: list[str] = []

    def ready(self) -> int:
        """Return how many ids `take` could give now."""
        count = 0
        for item in self._front:
            if isinstance(item, Folder):
                break
            count += len(item)
        return count

    @property
    def finished(self) -> bool:
        """Return whether there is nothing left to read; there may be ids left to take."""
        return not any(isinstance(item, Folder) for item in self._front)

    def next_folders(self, count: int) -> list[Folder]:
        """Return the first folders to read, at most `count`. Give their children to `read` before the next call."""
        folders: list[Folder] = []
        self._reading = []
        while self._front and len(folders) < count:
            item = self._front.popleft()
            self._reading.append(item)
            if isinstance(item, Folder):
                folders.append(item)
        return folders

    def read(self, names: Sequence[Sequence[str]]) -> None:
        """Add the children of the folders of the last `next_folders`, in that order."""
        answers = iter(names)
        out: list[Folder | list[LedgerId]] = []
        for item in self._reading:
            if not isinstance(item, Folder):
                out.append(item)
                continue
            found = sort_children(self._manager, item, next(answers), self._after)
            self.strays += found.strays
            out += [found.ids] if found.ids else []
            out += found.folders
        self._reading = []
        self._front.extendleft(reversed(out))

    def take(self, limit: int) -> list[LedgerId]:
        """Take up to `limit` of the ids that are ready, ascending."""
        taken: list[LedgerId] = []
        while len(taken) < limit and self._front and not isinstance(self._front[0], Folder):
            ids = self._front.popleft()
            assert not isinstance(ids, Folder)
            room = limit - len(taken)
            taken += ids[:room]
            if len(ids) > room:
                self._front.appendleft(ids[room:])
        return taken


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


# -- the LAYOUT node ------------------------------------------------------------------------------------------

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
    """Parse the record of the LAYOUT node; lines after the second are ignored.

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
