"""Making, inspecting and removing a whole cluster in ZooKeeper, as Apache's initnewcluster and nukeexistingcluster do.

Nothing that is there is ever overwritten. What single records hold is metadata/maintain/checkup.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from random import Random

from buckram.errors import (
    ClusterNotInitialised,
    KeyExists,
    KeyNotEmpty,
    MetadataUnavailable,
    NoSuchKey,
    WrongCluster,
)
from buckram.metadata.tree.key_grammar import split
from buckram.metadata.zookeeper.ledger_managers import (
    HEALTH_CHECK_SWITCH,
    HIERARCHICAL,
    MANAGERS,
    Folder,
    Manager,
    choose_manager,
    is_special,
    own_root,
    serialise_layout,
    sort_children,
)
from buckram.metadata.zookeeper.session import ANY_VERSION, ZkSession
from buckram.types import Create, Delete, KeyOp

_TRIES = 8
_BATCH = 500


@dataclass(slots=True)
class ClusterState:
    """Names and nodes directly below a root. `children` is None if there is no root, `layout` and `instance_id` if
    those nodes are missing.
    """

    root: str
    children: list[str] | None = None
    layout: bytes | None = None
    instance_id: str | None = None

    @property
    def made(self) -> bool:
        return self.layout is not None or self.instance_id is not None

    def ledger_names(self, manager: Manager | None = None) -> list[str]:
        """Return the children that hold ledgers: of one manager, or of any."""
        known = MANAGERS.values() if manager is None else (manager,)
        return [name for name in self.children or () if any(_holds_ledgers(one, name) for one in known)]

    def foreign(self, manager: Manager) -> list[str]:
        """Return the children that no BookKeeper software knows in such a cluster."""
        ledgers = self.ledger_names(manager)
        return [
            name
            for name in self.children or ()
            if name not in ledgers and not is_special(name) and name != HEALTH_CHECK_SWITCH
        ]


@dataclass(frozen=True, slots=True)
class Made:
    """The cluster that is there now; `created` tells whether this call made it."""

    instance_id: str
    manager: Manager
    created: bool


def _holds_ledgers(manager: Manager, name: str) -> bool:
    found = sort_children(manager, Folder(), [name])
    return bool(found.ids or found.folders)


async def look(session: ZkSession, root: str) -> ClusterState:
    """Read the names and nodes below a root."""
    await session.sync(root)
    state = ClusterState(root)
    try:
        state.children = await session.children(root)
    except NoSuchKey:
        return state
    state.layout = await _value(session, f"{root}/LAYOUT")
    instance = await _value(session, f"{root}/INSTANCEID")
    state.instance_id = None if instance is None else instance.decode("utf-8", "backslashreplace")
    return state


async def _value(session: ZkSession, path: str) -> bytes | None:
    try:
        return (await session.get(path))[0]
    except NoSuchKey:
        return None


# Making


async def make_cluster(
    session: ZkSession, root: str, wanted: Manager | None, rng: Random, instance_id: str = ""
) -> Made:
    """Make a cluster, or find the existing one.

    Raises WrongLedgerManager if that one uses another manager than `wanted`.

    All nodes appear at once; a half-made cluster of Apache's tool (no LAYOUT, no ledgers) is completed.
    """
    chosen = instance_id or str(uuid.UUID(int=rng.getrandbits(128), version=4))
    for _ in range(_TRIES):
        state = await look(session, root)
        if state.made and not _incomplete(state, wanted):
            manager = choose_manager(f"{root}/LAYOUT", state.layout, wanted)
            return Made(state.instance_id or "", manager, state.instance_id == chosen)
        _refuse_remains(state)
        if state.children is None:
            await _refuse_nested(session, root)
        try:
            if state.children is None and split(root)[0] != "/":
                await _make_parents(session, split(root)[0])
            await session.multi(_nodes(state, wanted or HIERARCHICAL, chosen))
        except (KeyExists, NoSuchKey, MetadataUnavailable) as error:
            lost = error  # another process makes or removes it, or the answer is lost: look again
            continue
        return Made(state.instance_id or chosen, wanted or HIERARCHICAL, True)
    raise MetadataUnavailable(f"{root}: not made after {_TRIES} tries, and not there either: {lost}")


def _incomplete(state: ClusterState, wanted: Manager | None) -> bool:
    """Return whether the cluster lacks a manager, and has no ledgers that would be lost by choosing the wanted one."""
    return state.layout is None and wanted is not None and not state.ledger_names()


def _refuse_remains(state: ClusterState) -> None:
    ledgers = state.ledger_names()
    if ledgers and not state.made:
        raise WrongCluster(
            f"{state.root} holds ledgers ({state.root}/{ledgers[0]}) but neither LAYOUT nor INSTANCEID: restore those "
            "nodes from a backup of ZooKeeper, or choose another root; nothing was changed"
        )
    foreign = [name for name in state.children or () if not is_special(name) and name not in ledgers]
    if foreign and not state.made:
        raise WrongCluster(
            f"{state.root} is not a cluster and holds foreign nodes ({state.root}/{foreign[0]}): choose another root, "
            "for example zk://host:port/prod/ledgers; nothing was changed"
        )


async def _refuse_nested(session: ZkSession, root: str) -> None:
    """Refuse a cluster in another one's tree: it would be a foreign node there, and might be taken for ledgers."""
    above = split(root)[0]
    while above != "/":
        state = await look(session, above)
        if state.made:
            raise WrongCluster(
                f"{root}: {above} is the root of another cluster: choose one beside it, for example "
                f"{above}-{split(root)[1]}; nothing was changed"
            )
        above = split(above)[0]


async def _make_parents(session: ZkSession, path: str) -> None:
    try:
        await session.create(path, parents=True)
    except KeyExists:
        return


def _nodes(state: ClusterState, manager: Manager, instance_id: str) -> list[KeyOp]:
    """Return the nodes that are missing, except the deeper part of `available`, which registration makes."""
    root, there = state.root, state.children or []
    ops: list[KeyOp] = []
    if state.children is None:
        ops.append(Create(root, b""))
    if "available" not in there:
        ops += [Create(f"{root}/available", b""), Create(f"{root}/available/readonly", b"")]
    if state.instance_id is None:
        ops.append(Create(f"{root}/INSTANCEID", instance_id.encode()))
    if state.layout is None:
        ops.append(Create(f"{root}/LAYOUT", serialise_layout(manager)))
    return ops


# Removing


async def nuke_cluster(session: ZkSession, root: str, instance_id: str | None, *, force: bool = False) -> int:
    """Remove a cluster with everything in it, Buckram's own keys too; return the number of nodes removed.

    `instance_id` must be the cluster's, unless `force`. Raises WrongCluster, with nothing changed, while bookies are
    registered or foreign nodes are there. An interrupted removal can be repeated: LAYOUT and INSTANCEID go last.
    """
    state = await look(session, root)
    if not state.made:
        raise ClusterNotInitialised(f"zk://{session.hosts}{root}")
    manager = choose_manager(f"{root}/LAYOUT", state.layout, None)
    if not force and instance_id != state.instance_id:
        raise WrongCluster(
            f"{root}/INSTANCEID is {state.instance_id!r}, --instance-id says {instance_id!r}: give the id of the "
            "cluster that is to go (`buckram cluster check` shows it), or --force; nothing was changed"
        )
    registered = await registered_bookies(session, root)
    if registered:
        raise WrongCluster(
            f"{root}/available: {len(registered)} bookies are registered ({', '.join(registered[:5])}): stop them "
            "first; nothing was changed"
        )
    foreign = state.foreign(manager)
    if foreign:
        raise WrongCluster(
            f"{root}: {len(foreign)} foreign nodes ({', '.join(f'{root}/{name}' for name in foreign[:5])}): see whose "
            "they are and remove them first; nothing was changed"
        )
    last = ("LAYOUT", "INSTANCEID")
    below = [f"{root}/{name}" for name in state.children or () if name not in last]
    removed = 0
    for path in (*below, own_root(root), *(f"{root}/{name}" for name in last), root):
        removed += await _remove(session, path)
    return removed


async def registered_bookies(session: ZkSession, root: str) -> list[str]:
    """Return every registered name, whether or not it is a bookie id."""
    found: list[str] = []
    for folder in (f"{root}/available", f"{root}/available/readonly"):
        try:
            found += [name for name in await session.children(folder) if name != "readonly"]
        except NoSuchKey:
            continue
    return found


async def _remove(session: ZkSession, path: str) -> int:
    """Delete a node with everything below it; return how many nodes, without those that others removed meanwhile."""
    try:
        names = await session.children(path)
    except NoSuchKey:
        return 0
    removed = 0
    for start in range(0, len(names), _BATCH):
        below = [f"{path}/{name}" for name in names[start : start + _BATCH]]
        try:
            await session.multi([Delete(node, ANY_VERSION) for node in below])
            removed += len(below)
        except (KeyNotEmpty, NoSuchKey):
            for node in below:
                removed += await _remove(session, node)
    try:
        await session.delete(path, ANY_VERSION)
    except NoSuchKey:
        return removed
    return removed + 1
