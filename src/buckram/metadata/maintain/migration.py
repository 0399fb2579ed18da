"""Moves a cluster's metadata from one store to another, of any kinds, so that neither is used by mistake meanwhile.

Both stores record what is going on in their history, which bookies and clients read before anything else: the source
that it is being left, the copy that it is not whole. So an interruption at any moment is noticed, nothing changes under
the copy, and the same call goes on. When all was compared the source is marked as gone, then the copy goes on with the
same history in the next epoch: a source that somebody brings back is behind it, and bookies compare the content of
their witness keys, not the versions, which begin anew (core/cluster/store_history).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from buckram.core.cluster.store_history import COPYING, GONE, HERE, LEAVING, why_not_accepted
from buckram.core.healing.records import TreePaths
from buckram.errors import (
    ClusterNotInitialised,
    ConfigError,
    KeyNotEmpty,
    MetadataError,
    NoSuchKey,
    WrongCluster,
)
from buckram.metadata.maintain.backup import (
    OnCount,
    StoredKey,
    counters,
    everything,
    read_history,
    replace_history,
    write,
)
from buckram.metadata.records.topology import TOPOLOGY, apache_key
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.ledger_managers import HEALTH_CHECK_SWITCH, is_special
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.types import CheckVersion, Delete, History, LedgerId

Values = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of a move. `again`: an earlier call had done it all."""

    instance_id: str
    epoch: int
    keys: int
    ledgers: int
    next_id: LedgerId
    again: bool = False


async def move(
    source: TreeStore,
    target: TreeStore,
    rng: random.Random,
    started: OnCount = lambda total: None,
    progress: OnCount = lambda count: None,
) -> Moved:
    """Move the metadata of the cluster at `source` to `target`, an empty place or one where this was interrupted.

    Raises ConfigError while bookies are writable at `source` or any is registered at `target`, naming them, and for a
    source that cannot be left; WrongCluster for a target that holds something else; MetadataError once another process
    has moved them, also for one that hung meanwhile: nothing is changed where the cluster goes on. `started` is called
    with the number of keys, `progress` with how many more are copied.
    """
    instance_id = await source.instance_id()
    before, here = await read_history(source)
    after, _ = await _history(target)
    finished = before.moved == f"{GONE} {target.uri}"
    if finished and after.accepted and after.epoch:
        found = await _values(source, source)
        return await _outcome(target, instance_id, found, again=True)
    _check_source(source, target, before)
    await _check_bookies(source, target)
    if not before.epoch:
        await source.begin_history()
        before, here = await read_history(source)
    after, there = await _claim(source, target, before)
    if not finished:
        before = replace(before, accepted=False, moved=f"{LEAVING} {target.uri}")
        here = await replace_history(source, before, here)
    await target.take_over(instance_id)
    wanted = await _values(source, target)
    started(len(wanted))
    await _fill(target, wanted, progress, CheckVersion(target.layout.history, there))
    next_id = await source.next_ledger_id()
    if next_id:
        await target.raise_next_id(next_id - 1)
    await _verify(source, target)
    await replace_history(source, replace(before, moved=f"{GONE} {target.uri}"), here)
    name = f"{rng.getrandbits(64):016x}"
    await replace_history(target, replace(after, accepted=True, moved=f"{HERE} {name}"), there)
    return await _outcome(target, instance_id, wanted)


async def _history(store: TreeStore) -> tuple[History, int]:
    """Return the history of a store, as `read_history`; an empty one if there is no cluster yet."""
    try:
        return await read_history(store)
    except ClusterNotInitialised:
        return History(), -1


async def abandon(source: TreeStore, target: TreeStore) -> None:
    """Undo an interrupted move, so that the source can be used again. What was copied stays, and is unusable."""
    before, version = await read_history(source)
    if before.moved == f"{GONE} {target.uri}" and not (await _history(target))[0].accepted:
        raise ConfigError(
            f"{source.uri}: nothing to abandon: the copy in {target.uri} is whole, and lacks only the last step of the "
            f"move: `buckram cluster move-metadata {source.uri} {target.uri}` takes it; nothing was changed"
        )
    if before.moved != f"{LEAVING} {target.uri}":
        why = why_not_accepted(before) or "no move from it to the other store is under way"
        raise ConfigError(f"{source.uri}: nothing to abandon: {why}; nothing was changed")
    await replace_history(source, replace(before, accepted=True, moved=""), version)


async def _outcome(target: TreeStore, instance_id: str, values: Values, *, again: bool = False) -> Moved:
    ledgers = sum(target.layout.ledger_of(key) is not None for key in values)
    if again:
        ledgers = sum(target.layout.ledger_of(key) is not None for key in await _values(target, target))
    epoch = (await target.history()).epoch
    return Moved(instance_id, epoch, len(values), ledgers, await target.next_ledger_id(), again)


# Whether it may begin


def _check_source(source: TreeStore, target: TreeStore, before: History) -> None:
    if source.uri == target.uri:
        raise ConfigError(f"{source.uri}: both stores are the same; nothing was changed")
    state, _, other = before.moved.partition(" ")
    if before.accepted or (state in (LEAVING, GONE) and other == target.uri):
        return
    raise ConfigError(f"{source.uri} cannot be moved: {why_not_accepted(before)}; nothing was changed")


async def _check_bookies(source: TreeStore, target: TreeStore) -> None:
    live = list((await source.bookies()).writable)
    if live:
        raise ConfigError(
            f"{source.uri}: {len(live)} bookies are writable ({', '.join(live[:10])}): stop them, or start them "
            "read-only, and call this again; nothing was changed"
        )
    try:
        listed = await target.bookies()
    except ClusterNotInitialised:
        return
    there = [*listed.writable, *listed.readonly]
    if there:
        raise ConfigError(
            f"{target.uri}: {len(there)} bookies are registered ({', '.join(there[:10])}): stop them, and start them "
            "again when the metadata are there; nothing was changed"
        )


async def _claim(source: TreeStore, target: TreeStore, before: History) -> tuple[History, int]:
    """Mark the target as a copy that is not whole, before anything else is in it. Return the mark and its version."""
    mark, (after, version) = f"{COPYING} {source.uri}", await _history(target)
    if after.moved == mark:
        return after, version
    await _refuse_others(target, after)
    await target.keys.prepare()
    made = History(before.epoch + 1, before.restore, accepted=False, moved=mark)
    return made, await replace_history(target, made, version)


async def _refuse_others(target: TreeStore, after: History) -> None:
    try:
        found = f"is cluster {await target.instance_id()}"
    except ClusterNotInitialised:
        if not after.epoch:
            return
        found = "holds something of a cluster"
    why = why_not_accepted(after)
    raise WrongCluster(
        f"{target.uri} {found}{f' ({why})' if why else ''}: metadata are moved to an empty place only; name another "
        "one, or remove that cluster first; nothing was changed"
    )


# What is moved


async def _values(source: TreeStore, target: TreeStore) -> Values:
    """Return what `source` keeps, under the keys that `target` has for it: all but the history, counters and empty
    folders.

    Raises WrongCluster for keys that are no part of a cluster.
    """
    await source.ledgers.manager_name(), await target.ledgers.manager_name()  # from now on the layouts are known
    here, there = source.layout, target.layout
    made: Values = {}
    foreign: list[str] = []
    kept = await everything(source)
    for key, _, value in kept:
        ledger_id = here.ledger_of(key)
        above, _, name = key.rpartition("/")
        held = here.ledger_of(above)
        if key in (here.history, *counters(source)):
            continue
        if ledger_id is not None:
            made[await target.ledgers.key(ledger_id)] = value
        elif held is not None:
            made[f"{await target.ledgers.key(held)}/{name}"] = value  # streams that share the ledger
        elif key == here.instance_id:
            made[there.instance_id] = value
        elif key.startswith(f"{here.cookies}/"):
            made[there.cookies + key.removeprefix(here.cookies)] = value
        elif key.startswith(f"{here.own}/"):
            made[there.own + key.removeprefix(here.own)] = value
        elif key.startswith(f"{TreePaths(here.root).base}/"):
            made[there.root + key.removeprefix(here.root)] = value  # the same tree in all stores
        elif key == apache_key(source) and (place := _map_place(source, target, kept)):
            made[place] = value
        elif value and not _is_apaches(source, key):
            foreign.append(key)
    if foreign:
        raise WrongCluster(
            f"{source.uri}: {len(foreign)} keys are no part of a cluster ({', '.join(foreign[:5])}): see whose they "
            "are and remove them, or they would be lost"
        )
    return made


def _map_place(source: TreeStore, target: TreeStore, kept: Sequence[StoredKey]) -> str:
    """Return the place for Apache's map of racks: other stores know ours only, in the same form.

    Empty if that would replace ours.
    """
    if apache_key(target):
        return apache_key(target)
    ours = f"/{TOPOLOGY}"
    return "" if any(one.key == source.own + ours for one in kept) else target.own + ours


def _is_apaches(store: TreeStore, key: str) -> bool:
    """Return whether a key is one that only Apache's layout and tools need: other stores have nothing like it."""
    name = key.removeprefix(f"{store.layout.root}/").partition("/")[0]
    return isinstance(store, ZooKeeperStore) and (is_special(name) or name == HEALTH_CHECK_SWITCH)


async def _fill(target: TreeStore, wanted: Values, progress: OnCount, mine: CheckVersion) -> None:
    """Make the target hold just these values, on condition of its mark."""
    versions = {one.key: one.version for one in await everything(target)}
    folders = {key[:at] for key in wanted for at in range(len(key)) if key[at] == "/"}
    others = [key for key in await _values(target, target) if key not in wanted and key not in folders]
    for key in sorted(others, key=lambda each: -each.count("/")):
        try:
            await target.keys.multi([mine, Delete(key, versions[key])])
        except (NoSuchKey, KeyNotEmpty):
            continue
    await write(target, wanted, progress, when=(mine,))


async def _verify(source: TreeStore, target: TreeStore) -> None:
    """Read both stores once more and compare them, key by key."""
    wanted, found = await _values(source, target), await _values(target, target)
    folders = {key[:at] for key in wanted for at in range(len(key)) if key[at] == "/"}
    wrong = [key for key, value in wanted.items() if found.get(key) != value]
    wrong += [key for key in found if key not in wanted and key not in folders]
    if await target.next_ledger_id() < await source.next_ledger_id():
        wrong.append("the next ledger id")
    if wrong:
        raise MetadataError(
            f"{wrong[0]} of {target.uri} is not what {source.uri} holds ({len(wrong)} such keys): another "
            "program changes one of them; stop the clients and call this again"
        )
