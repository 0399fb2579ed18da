"""The tree of names: directories with objects and directories, listed in the order of their full names.

Renaming a directory is one step, because a node knows its name in its parent only. A name is an object or a directory,
never both; a directory that nobody made appears with its first object and vanishes with its last. `ObjectNames` is the
side of the index that only reads.

Not here: commands and their changes (`core/objects/index.py`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterator

from buckram.core.objects.rows import ObjectRow

_BUCKET = 512


class SortedNames:
    """A sorted set of strings with cheap insertion among very many: a list of short sorted lists."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: list[list[str]] = []

    def _place(self, name: str) -> int:
        """Return the index of the bucket that has the name, or would have it."""
        low, high = 0, len(self._buckets) - 1
        while low < high:
            middle = (low + high) // 2
            if self._buckets[middle][-1] < name:
                low = middle + 1
            else:
                high = middle
        return low

    def copy(self) -> SortedNames:
        """Return the names of this moment."""
        other = SortedNames()
        other._buckets = [bucket[:] for bucket in self._buckets]
        return other

    def load(self, names: list[str]) -> None:
        """Take over names that are sorted already."""
        self._buckets = [names[begin : begin + _BUCKET] for begin in range(0, len(names), _BUCKET)]

    def add(self, name: str) -> None:
        if not self._buckets:
            self._buckets.append([name])
            return
        place = self._place(name)
        bucket = self._buckets[place]
        insort(bucket, name)
        if len(bucket) > 2 * _BUCKET:
            self._buckets[place : place + 1] = [bucket[:_BUCKET], bucket[_BUCKET:]]

    def remove(self, name: str) -> None:
        place = self._place(name)
        bucket = self._buckets[place]
        del bucket[bisect_left(bucket, name)]
        if not bucket:
            del self._buckets[place]

    def since(self, name: str) -> Iterator[str]:
        """Yield all names that are not below `name`, in order."""
        if not self._buckets:
            return
        place = self._place(name)
        yield from self._buckets[place][bisect_left(self._buckets[place], name) :]
        for bucket in self._buckets[place + 1 :]:
            yield from bucket


class Directory:
    """A directory. `nodes` has its children by name; in `order` a directory's name ends with a slash.

    `below` has the directories among the children. `kept`: somebody made it, and it stays when it is empty. `time_us`:
    when a child came or went, in microseconds UTC.
    """

    __slots__ = ("below", "kept", "name", "nodes", "order", "parent", "time_us")

    def __init__(self, time_us: int = 0) -> None:
        self.name, self.parent = "", None  # type: str, Directory | None
        self.nodes: dict[str, Directory | ObjectRow] = {}
        self.below: dict[str, Directory] = {}
        self.order = SortedNames()
        self.kept, self.time_us = False, time_us

    def attach(self, name: str, node: Directory | ObjectRow, time_us: int) -> None:
        """Put a node under a name, in the place of an object that is there."""
        if name not in self.nodes:
            self.order.add(name + "/" if isinstance(node, Directory) else name)
        self.nodes[name] = node
        self.time_us = time_us
        if isinstance(node, Directory):
            node.name, node.parent = name, self
            self.below[name] = node

    def detach(self, name: str, time_us: int) -> Directory | ObjectRow:
        """Remove a child and return it. A directory that nobody made goes with its last child. Raises KeyError if it is
        not there.
        """
        node = self.nodes.pop(name)
        self.order.remove(name + "/" if isinstance(node, Directory) else name)
        self.time_us = time_us
        if not self.nodes and self.parent is not None and not self.kept:
            self.parent.detach(self.name, time_us)
        if isinstance(node, Directory):
            node.parent = None
            del self.below[name]
        return node


class Blocked(Exception):
    """A name is of the wrong kind, or leads through one; the text tells which."""


def find(root: Directory, path: str) -> Directory | ObjectRow | None:
    """Return the node of a name, or None. The empty name is the root's."""
    node: Directory | ObjectRow | None = root
    for part in path.split("/") if path else ():
        node = node.nodes.get(part) if isinstance(node, Directory) else None
    return node


def parent_of(root: Directory, path: str) -> tuple[Directory, str] | None:
    """Return the directory that holds the last part of a name, and that part; None if there is no such directory."""
    above, _, name = path.rpartition("/")
    node = find(root, above)
    return (node, name) if isinstance(node, Directory) else None


def place_for(root: Directory, path: str, time_us: int) -> tuple[Directory, str]:
    """Return the same as `parent_of`, after making missing directories. Raises Blocked if an object is in the way;
    nothing is made then.
    """
    *above, name = path.split("/")
    node: Directory = root
    missing: list[str] = []
    for depth, part in enumerate(above):
        found = None if missing else node.nodes.get(part)
        if isinstance(found, ObjectRow):
            raise Blocked(f"{'/'.join(above[: depth + 1])!r} is an object and no directory")
        if found is None:
            missing.append(part)
        else:
            node = found
    for part in missing:
        made = Directory(time_us)
        node.attach(part, made, time_us)
        node = made
    return node, name


def make_directories(root: Directory, path: str, time_us: int) -> bool:
    """Make a directory and all above it, to be kept also when empty. Return False if it was there. Raises Blocked."""
    fresh = find(root, path) is None
    node, _ = place_for(root, f"{path}/.", time_us)
    while node.parent is not None:
        node.kept, node = True, node.parent
    return fresh


def in_the_way(root: Directory, path: str) -> tuple[Directory, str] | None:
    """Return the place of the node that keeps an object from being put at a path: an object above it, or a directory
    there.
    """
    node, (*above, name) = root, path.split("/")
    for part in above:
        child = node.nodes.get(part)
        if child is None:
            return None
        if isinstance(child, ObjectRow):
            return node, part
        node = child
    return (node, name) if isinstance(node.nodes.get(name), Directory) else None


def leave(root: Directory, path: str, time_us: int) -> None:
    """Mark a directory as kept no longer: it goes when it is empty. No-op if it is not there."""
    node = find(root, path)
    if isinstance(node, Directory) and node.parent is not None:
        node.kept = False
        if not node.nodes:
            node.parent.detach(node.name, time_us)


def directories(root: Directory, path: str = "") -> Iterator[tuple[str, Directory]]:
    """Yield a directory and all below it, each with its path, in order."""
    yield path, root
    for name, node in sorted(root.below.items()):
        yield from directories(node, f"{path}/{name}" if path else name)


def walk(root: Directory, prefix: str, after: str) -> Iterator[tuple[str, ObjectRow]]:
    """Yield objects whose full names begin with `prefix` and are greater than `after`, in order."""
    yield from _walk(root, "", prefix, after)


def _walk(directory: Directory, path: str, prefix: str, after: str) -> Iterator[tuple[str, ObjectRow]]:
    floor = max(prefix, after)
    start = ""
    if floor.startswith(path):
        rest = floor[len(path) :]
        start = rest.partition("/")[0]
    for key in directory.order.since(start):
        full = path + key
        if not full.startswith(prefix) and not prefix.startswith(full):
            if full > prefix:
                return
            continue
        node = directory.nodes[key.rstrip("/")]
        if isinstance(node, Directory):
            if after.startswith(full) or full > after:
                yield from _walk(node, full, prefix, after)
        elif full > after and full.startswith(prefix):
            yield full, node


# -- reading names --------------------------------------------------------------------------------------------


class ObjectNames:
    """The names of a namespace, as of `now_us`, microseconds UTC."""

    def __init__(self) -> None:
        self.root = Directory()
        self.now_us = 0

    def node(self, path: str) -> Directory | ObjectRow | None:
        """Return the directory or object under a name, None if there is none or it has expired; the empty path is the
        root's.
        """
        node = find(self.root, path)
        return None if isinstance(node, ObjectRow) and node.expired(self.now_us) else node

    def look(self, name: str) -> ObjectRow | None:
        """Return the object of a name; None if there is none or it has expired by the time of the log."""
        node = self.node(name)
        return node if isinstance(node, ObjectRow) else None

    def listed(self, prefix: str, after: str, limit: int) -> list[tuple[str, ObjectRow]]:
        """Return at most `limit` objects in the order of their names."""
        found: list[tuple[str, ObjectRow]] = []
        for name, row in walk(self.root, prefix, after):
            if len(found) >= limit:
                break
            if not row.expired(self.now_us):
                found.append((name, row))
        return found

    def children(self, path: str, after: str, limit: int) -> list[tuple[str, Directory | ObjectRow]] | None:
        """Return at most `limit` direct children of a directory; None if the path is none. In this order a directory's
        name ends with "/".
        """
        node = self.node(path)
        if not isinstance(node, Directory):
            return None
        found: list[tuple[str, Directory | ObjectRow]] = []
        for key in node.order.since(after):
            child = node.nodes[key.rstrip("/")]
            if key > after and not (isinstance(child, ObjectRow) and child.expired(self.now_us)):
                found.append((f"{path}/{key}".strip("/"), child))
            if len(found) >= limit:
                break
        return found

    def in_ledgers(self, ledgers: Container[int], after: str, most: int) -> tuple[list[tuple[str, ObjectRow]], str]:
        """Return those of the next `most` objects after a name that have bytes in one of the ledgers, and the name to
        continue after, empty at the end.
        """
        found: list[tuple[str, ObjectRow]] = []
        for seen, (name, row) in enumerate(walk(self.root, "", after), 1):
            if any(extent.ledger in ledgers for extent in row.extents):
                found.append((name, row))
            if seen >= most:
                return found, name
        return found, ""
