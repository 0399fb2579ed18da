"""The interface to ZooKeeper that Buckram needs: a narrow session, its values, a count of requests, a table of watches.

Implemented by kazoo_session (real servers) and simulator/engine/zookeeper. `create_with_parents` is the one algorithm
on top that every session offers in the same way. A session asks the server for a one-shot watch with each read; the
client-side table knows which callbacks wait for which node and passes each event on to them.

Not here: which nodes exist and what they mean.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from buckram.errors import InvalidArgument, KeyExists, MetadataUnavailable, NoSuchKey, ValueTooLarge
from buckram.metadata.tree.key_grammar import split
from buckram.seams import Notify
from buckram.types import Create, KeyOp, SetValue

ANY_VERSION = -1
"""Version for `delete` and a multi's Delete and SetValue that matches any, as some of Apache's deletions do."""

MAX_REQUEST_BYTES = 1_000_000
"""Maximum bytes of a request: a server with its usual settings (jute.maxbuffer 1,048,575) ends the connection at a
larger one without a reason.
"""

READS = ("get", "exists", "children", "sync")

_OP_BYTES = 64

_CREATE_TRIES = 64

_MAX_VERSION = 2**31 - 1


class ZkStat(NamedTuple):
    """Stat of a node. `owner` is the session that an ephemeral node is bound to, 0 for other nodes."""

    version: int
    ctime_ms: int
    owner: int
    children: int
    cversion: int


@dataclass(slots=True)
class OperationCount:
    """Number of requests sent, repeated reads and created parents included. A multi is one write."""

    reads: int = 0
    writes: int = 0
    syncs: int = 0


class ZkSession(Protocol):
    """One client's session. Paths are absolute; a session that expires is followed by a new one by itself.

    Errors are errors.MetadataError's children: NoSuchKey, KeyExists, VersionConflict, KeyNotEmpty, AccessRefused (an
    ACL), and MetadataUnavailable for everything that leaves open whether a mutation happened. A mutation is never sent
    twice; reads are, for a bounded time. While ZooKeeper is away everything fails so after a bounded time.

    Operations started one after another are carried out in that order, also without waiting for the earlier ones.
    What a session reads after a MetadataUnavailable tells for good whether that mutation happened: it cannot happen
    any more if it is not seen. Nothing that a session reads is older than the session.

    Watches are ZooKeeper's: they fire once, on the loop, after a change or when the session is lost, possibly without
    a change. The same function set twice on one node fires once. A failed read sets none, with one exception:
    `exists` of a missing node watches for its creation.
    """

    hosts: str
    """Servers as host:port[,host:port], for messages."""
    operations: OperationCount

    @property
    def session_id(self) -> int:
        """Return the ZkStat.owner of this session's ephemeral nodes; 0 while there is no session."""
        ...

    @property
    def ticket(self) -> str:
        """Return the text by which another session's `end_other` can end this one; "" while there is no session."""
        ...

    async def end_other(self, ticket: str) -> None:
        """End the session of a process that is dead; do nothing if it is over already.

        Raises InvalidArgument for a text that is no ticket, MetadataUnavailable when no server could be reached.
        """
        ...

    @property
    def session_timeout_s(self) -> float:
        """Return how long the servers keep the session of a silent client, in seconds."""
        ...

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
        world_open: bool = False,
    ) -> tuple[str, int]:
        """Make a node; return its path, with the sequence number if there is one, and its version, which is 0.

        Raises NoSuchKey with the parent that is missing, unless `parents`: missing ones are then made as empty ordinary
        nodes. `world_open` takes the open ACL whatever the session's is. Raises KeyExists, also if it is ours after a
        lost reply: see ZkStat.owner.
        """
        ...

    async def get(self, path: str, watch: Notify | None = None) -> tuple[bytes, ZkStat]: ...
    async def set(self, path: str, value: bytes, version: int, *, session: int = 0) -> int:
        """Set the value; return the new version.

        `session`: the node is bound to that one, so raises NoSuchKey once this is another session.
        """
        ...

    async def delete(self, path: str, version: int, *, session: int = 0) -> None:
        """Delete a node. `session` as for `set`: a node of the same name and version may be somebody else's by then."""
        ...

    async def exists(self, path: str, watch: Notify | None = None) -> ZkStat | None: ...
    async def children(self, path: str, watch: Notify | None = None) -> list[str]:
        """Return all names, in order. Raises NoSuchKey if the node is missing."""
        ...

    async def multi(self, ops: Sequence[KeyOp], *, session: int = 0) -> None:
        """Carry out all operations in order, or none; raise the error of the first that fails. Parents must exist.

        `session` as for `set`, of any of the nodes; the error names the first one then.
        """
        ...

    async def sync(self, path: str) -> None:
        """Make sure that what this session reads afterwards is at least as new as this moment."""
        ...

    def on_session_lost(self, notify: Notify) -> None:
        """Set a callback on the loop for each loss of the session and its ephemeral nodes; a new session serves from
        then on.
        """
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes are removed, its watches never fire again. Idempotent."""
        ...


async def create_with_parents(path: str, create_one: Callable[[str], Awaitable[str]]) -> str:
    """Call `create_one(path)`, and if a parent is missing make the parents first; return the made path.

    `create_one` makes `path` itself as asked for and any other path as an empty ordinary node. Others delete empty
    parents at the same time, so what vanished is made again, for a bounded number of times.
    """
    wanted = [path]
    for _ in range(_CREATE_TRIES):
        made = wanted[-1]
        try:
            made = await create_one(wanted[-1])
        except NoSuchKey:
            wanted.append(split(wanted[-1])[0])
            continue
        except KeyExists:
            if len(wanted) == 1:
                raise
        wanted.pop()
        if not wanted:
            return made
    raise MetadataUnavailable(f"{path}: its parents vanish as fast as they are made; try again")


def check_version(path: str, version: int) -> None:
    """Raise InvalidArgument for a version that the protocol has no room for."""
    if not ANY_VERSION <= version <= _MAX_VERSION:
        raise InvalidArgument(f"{path}: version {version}: a node's version is between 0 and {_MAX_VERSION}")


def check_size(ops: Sequence[KeyOp]) -> None:
    """Raise ValueTooLarge for a request that servers do not take."""
    size = sum(
        _OP_BYTES + len(op.key.encode()) + (len(op.value) if isinstance(op, Create | SetValue) else 0) for op in ops
    )
    if size > MAX_REQUEST_BYTES:
        key = ops[0].key if len(ops) == 1 else f"multi of {len(ops)} operations, from {ops[0].key} on"
        raise ValueTooLarge(key, size, MAX_REQUEST_BYTES)


# -- one-shot watches -----------------------------------------------------------------------------------------


class Change(Enum):
    """Kind of event that a server reports of a node."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


class WatchTable:
    """Functions by node. Those taken out are to be called once each; they are no longer in the table then."""

    def __init__(self) -> None:
        self._value: dict[str, dict[Notify, None]] = {}
        self._children: dict[str, dict[Notify, None]] = {}

    def add(self, path: str, notify: Notify, *, children: bool) -> None:
        """Add a function. `children`: it was set by a listing, otherwise by `get` or `exists`."""
        (self._children if children else self._value).setdefault(path, {})[notify] = None

    def take(self, path: str, change: Change) -> list[Notify]:
        found: dict[Notify, None] = {}
        if change is not Change.CHILD:
            found |= self._value.pop(path, {})
        if change in (Change.CHILD, Change.DELETED):
            found |= self._children.pop(path, {})
        return list(found)

    def take_all(self) -> list[Notify]:
        found: dict[Notify, None] = {}
        for waiting in (*self._value.values(), *self._children.values()):
            found |= waiting
        self._value.clear()
        self._children.clear()
        return list(found)
