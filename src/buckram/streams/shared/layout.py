"""The keys of streams in the metadata store, and the names that stand there.

Not here: what the keys hold (`shared/metadata.py`, `shared/namespaces.py`); none of it is imported, so that a list of
names is quick.
"""

from __future__ import annotations

from buckram.core.streams.names import StreamName
from buckram.errors import InvalidArgument
from buckram.seams import KeyStore, MetadataStore
from buckram.types import LedgerId


class Layout:
    """The paths of all keys of streams. They lie below the root of the metadata store's own keys."""

    def __init__(self, store: MetadataStore) -> None:
        own = getattr(getattr(store, "layout", None), "own", "/buckram")
        self.root = f"{own}/streams"
        self.namespaces = f"{self.root}/namespaces"
        self.all_heads, self.all_data = f"{self.root}/heads", f"{self.root}/data"

    def namespace(self, namespace: str) -> str:
        return f"{self.namespaces}/{namespace}"

    def heads(self, namespace: str) -> str:
        return f"{self.root}/heads/{namespace}"

    def head(self, name: StreamName) -> str:
        return f"{self.root}/heads/{name.namespace}/{name.stream}"

    def data(self, uid: str) -> str:
        return f"{self.root}/data/{uid}"

    def page(self, uid: str, number: int) -> str:
        return f"{self.root}/data/{uid}/pages/{number:012d}"

    def lease(self, uid: str) -> str:
        return f"{self.root}/data/{uid}/lease"

    def intents(self, uid: str) -> str:
        return f"{self.root}/data/{uid}/intents"

    def intent(self, uid: str, ledger: LedgerId) -> str:
        return f"{self.root}/data/{uid}/intents/{ledger:019d}"

    def object_writers(self, uid: str) -> str:
        return f"{self.root}/data/{uid}/writers"

    def replicas(self, uid: str) -> str:
        """Return the parent of the ephemeral keys by which servers publish their replicas of a database."""
        return f"{self.root}/data/{uid}/replicas"

    def exports(self, uid: str) -> str:
        """Return the parent of the records of exports, whose names `core/streams/external/exports.py:export_key`
        makes.
        """
        return f"{self.root}/data/{uid}/exports"

    def imports(self, uid: str) -> str:
        """Return the parent of the records of imports, whose names `core/streams/external/imports.py` makes."""
        return f"{self.root}/data/{uid}/imports"

    def shared(self, uid: str) -> str:
        """Return the parent of the keys of ledgers that the stream shares with others
        (`streams/shared/shared_ledgers.py`).
        """
        return f"{self.root}/data/{uid}/shared"

    def link(self, namespace: str) -> str:
        """Return the key of the record of a namespace's replication, `core/streams/replication_links.py`."""
        return f"{self.root}/replication/{namespace}"

    def progress(self, uid: str) -> str:
        """Return the key of the last reported progress of the replication into a mirror, `replication/lag.py`."""
        return f"{self.root}/data/{uid}/progress"

    def backup(self, uid: str) -> str:
        """Return the key of the record of a database's backups by its policy, `core/db/backups.py`."""
        return f"{self.root}/data/{uid}/backup"

    def backup_claim(self, uid: str) -> str:
        """Return the ephemeral key that the process making such a backup holds, so that only one does."""
        return f"{self.root}/data/{uid}/backing-up"

    def insertion(self, uid: str) -> str:
        """Return the ephemeral key of a bulk step's request to the stream's writer,
        `core/streams/metadata/insertions.py`.
        """
        return f"{self.root}/data/{uid}/insertion"

    def cursors(self, uid: str) -> str:
        return f"{self.root}/data/{uid}/cursors"

    def cursor(self, uid: str, cursor: str) -> str:
        return f"{self.root}/data/{uid}/cursors/{cursor}"


async def list_names(keys: KeyStore, parent: str, prefix: str, after: str, limit: int) -> list[str]:
    """Return the children of `parent` that begin with `prefix` and are greater than `after`, in order."""
    if type(limit) is not int or limit < 1 or not isinstance(prefix, str) or not isinstance(after, str):
        raise InvalidArgument(
            f"list(prefix={prefix!r}, after={after!r}, limit={limit!r}): needs names, and a limit from 1 on"
        )
    found: list[str] = []
    # Names come in order, so reading starts right before the first name that can begin with the prefix.
    start = after if after >= prefix else prefix[:-1] + chr(max(ord(prefix[-1]) - 1, 32)) + "\uffee" * 4
    if after < prefix and after:
        start = max(start, after)
    while len(found) < limit:
        page = await keys.children(parent, after=start, limit=max(limit, 100))
        for name in page:
            if name.startswith(prefix):
                found.append(name)
            elif name > prefix:
                return found[:limit]
        if not page:
            break
        start = page[-1]
    return found[:limit]
