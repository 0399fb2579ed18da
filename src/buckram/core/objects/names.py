"""Names: the readable side of an objects' index. Not here: changes of it (`core/objects/index.py`)."""

from __future__ import annotations

from collections.abc import Container

from buckram.core.objects.rows import ObjectRow
from buckram.core.objects.tree import Directory, find, walk


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


__all__ = ["ObjectNames"]
