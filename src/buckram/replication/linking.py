"""Linking: both sides record that a namespace is replicated, before anything of it is copied.

A target that has streams of its own is refused: with a record that says it is a mirror, it could create nothing any
more, and a run in the right direction would be refused. So the target is looked at before anything is written, and once
more after a tentative record was: a stream that was created meanwhile is found by that look, and a later one is not
created. Only then is the record confirmed. A tentative record whose writer is gone counts for nothing.

Not here: what links say (`core/streams/replication_links.py`), fencing the side that a promotion replaced
(`replication/fencing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from buckram.core.streams.metadata.mirrors import MIRROR, PROMOTED, SUPERSEDED, is_copied, mirrored_settings
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.replication_links import (
    NAMED,
    SOURCE,
    Link,
    check_run,
    check_target,
    confirmed,
    encode_link,
    is_superseded,
    version_of,
)
from buckram.errors import (
    BuckramError,
    KeyExists,
    NamespaceExists,
    NoSuchKey,
    NoSuchNamespace,
    NoSuchStream,
    VersionConflict,
)
from buckram.replication.fencing import supersede
from buckram.replication.sides import Side, WrittenLink, read_link, stream_names, write_link
from buckram.streams.shared.metadata import head_retries
from buckram.types import CheckVersion, Delete, KeyOp, SetValue


async def check_link(source: Side, target: Side, namespace: str) -> tuple[Link | None, Link | None]:
    """Return the records of both sides. A side that a promotion replaced is fenced.

    Raises ReplicationRefused unless the namespace may be copied from `source` to `target`.
    """
    here, there = await read_link(source, namespace), await read_link(target, namespace)
    if source.cluster != target.cluster:
        if there is not None and is_superseded(here, there, source.cluster):
            link = replace(there, state=SUPERSEDED, cluster=target.cluster, uri=target.uri)
            await supersede(source, namespace, link)
        elif here is not None and is_superseded(there, here, target.cluster):
            link = replace(here, state=SUPERSEDED, cluster=source.cluster, uri=source.uri)
            await supersede(target, namespace, link)
    check_run(namespace, here, there, source.cluster, target.cluster)
    return here, there


async def check_sides(source: Side, target: Side, namespace: str, streams: frozenset[str]) -> None:
    """Raise ReplicationRefused unless these streams of a namespace, or all, may be copied; nothing is written."""
    here, there = await check_link(source, target, namespace)
    known, wanted = _mirror_link(source, target, here, there, streams)
    if known is None or known.streams != wanted.streams:
        await _check_own(source, target, namespace, wanted)


async def link_sides(source: Side, target: Side, namespace: str, streams: frozenset[str]) -> int:
    """Have both sides record the replication of these streams of a namespace, or of all; return its epoch.

    To be called after `check_sides`. Raises ReplicationRefused, also for a target that has got streams of its own
    since, and the errors of the metadata stores.
    """
    retries = head_retries()
    while True:
        here, there = await check_link(source, target, namespace)
        known, wanted = _mirror_link(source, target, here, there, streams)
        try:
            if known is None or known.streams != wanted.streams:
                await _begin(source, target, namespace, there, wanted)
            elif replace(wanted, version=known.version, time=known.time) != known:
                await write_link(target, namespace, replace(wanted, version=known.version))
            await _note_source(source, target, namespace, wanted)
            return wanted.epoch
        except (KeyExists, VersionConflict, NoSuchKey) as error:  # Another process has changed a record meanwhile.
            await retries.wait(error)


def _mirror_link(
    source: Side, target: Side, here: Link | None, there: Link | None, streams: frozenset[str]
) -> tuple[Link | None, Link]:
    """Return the record by which the target is a mirror now, None if it is none, and the one that it is to have."""
    epoch = max(here.epoch if here else 0, there.epoch if there else 0)
    known = confirmed(there)
    if known is not None and known.state != MIRROR:
        known = None
    names = tuple(sorted(streams)) if known is None else known.joined(streams)
    return known, Link(MIRROR, source.cluster, source.uri, epoch, target.now(), names)


async def make_namespace(target: Side, namespace: str, policy: Mapping[str, Any]) -> None:
    """Create a namespace in the target with the settings of the source's, unless it exists."""
    try:
        await target.namespaces.get(namespace)
    except NoSuchNamespace:
        with suppress(NamespaceExists):
            await target.namespaces.create(namespace, **mirrored_settings(policy, {}))


async def _begin(source: Side, target: Side, namespace: str, before: Link | None, wanted: Link) -> None:
    """Have the target record that it is a mirror, or one of more streams, if it has no streams of its own among them.

    `before`: the record that it has now; it has it again if this is refused.
    """
    await make_namespace(target, namespace, (await source.namespaces.get(namespace)).policy)
    old = confirmed(before)
    tentative = old is None or old.state != MIRROR
    written = await write_link(target, namespace, replace(wanted, version=version_of(before), tentative=tentative))
    try:
        await _check_own(source, target, namespace, wanted)
        await _check_crossing(source, target, namespace)
        if tentative:
            await _replace(target, namespace, written, replace(written.link, tentative=False))
    except BuckramError:
        with suppress(BuckramError):
            await _replace(target, namespace, written, old)
        raise


async def _check_own(source: Side, target: Side, namespace: str, wanted: Link) -> None:
    """Raise ReplicationRefused if the target has streams of its own that would be replicated."""
    own: list[str] = []
    async for name in stream_names(target, namespace):
        if not wanted.has(name.stream):
            continue
        try:
            head = (await target.streams.read(name)).head
        except NoSuchStream:
            continue
        if head.deleting or is_copied(head.mirror, source.cluster, target.cluster):
            continue
        purpose = purpose_of(str(name), head)
        if purpose is Purpose.OBJECTS:
            own.append("its objects")
        else:
            own.append(name.stream if purpose is Purpose.RECORDS else f"{name.stream} ({purpose.value})")
        if len(own) > NAMED:
            break
    check_target(namespace, own)


async def _check_crossing(source: Side, target: Side, namespace: str) -> None:
    """Raise ReplicationRefused if the source has become the mirror of the target meanwhile.

    A run in the other direction that has not confirmed it is stopped, as its record may be one of a run that is gone.
    """
    space = (await source.namespaces.get(namespace)).version
    here = await read_link(source, namespace)
    check_run(namespace, here, None, source.cluster, target.cluster)
    if here is not None and here.tentative:
        await _replace(source, namespace, WrittenLink(here, space), None)


async def _replace(side: Side, namespace: str, present: WrittenLink, link: Link | None) -> None:
    """Replace a record of a side by another one, or by none.

    No other record was written since `present` was: that would have changed the namespace's. The version of the record
    alone does not say so, as one that was deleted and made again has its first version again.
    """
    keys, layout = side.streams.keys, side.streams.layout
    key, version = layout.link(namespace), present.link.version
    put: KeyOp = Delete(key, version) if link is None else SetValue(key, encode_link(link), version)
    await keys.multi([put, CheckVersion(layout.namespace(namespace), present.space)])


async def _note_source(source: Side, target: Side, namespace: str, mirror: Link) -> None:
    """Have the source record that it is one, unless a promotion made it one."""
    here = await read_link(source, namespace)
    check_run(namespace, here, mirror, source.cluster, target.cluster)
    if here is not None and not here.tentative and here.state in (MIRROR, PROMOTED):
        return
    wanted = replace(mirror, state=SOURCE, cluster=target.cluster, uri=target.uri)
    if here is None or replace(wanted, version=here.version, time=here.time) != here:
        await write_link(source, namespace, replace(wanted, version=version_of(here)))
