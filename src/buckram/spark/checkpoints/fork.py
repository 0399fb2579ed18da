"""A copy of a Spark query's checkpoint as of a batch, with forks of the streams that the query reads.

The copy has the state and the logs up to the batch and another query's id, and appears in one step when it is complete.
Objects are copied without reading their bytes. Where streams are forked, the names and uids in the copy's log of
offsets are those of the forks. Not here: whether a checkpoint is whole (`spark/checkpoints/integrity_check.py`),
forking a stream (`streams/maintain/fork.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from buckram.cluster import Client
from buckram.core.streams.metadata.transactions import forked_query
from buckram.core.streams.names import StreamName, stream_name
from buckram.errors import BuckramError, InvalidArgument, NoSuchObject, NoSuchStream, ObjectExists, StreamExists
from buckram.spark.checkpoints.contents import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    STATE,
    as_json_line,
    files_of,
)
from buckram.spark.checkpoints.integrity_check import check_checkpoint, refuse, version_of
from buckram.spark.shared.rollback_detection import TIMES
from buckram.state.objects.objects import Objects

_UIDS, _BEGAN = "uids", "began"
"""Keys of an offset that are not streams; the full name of a stream has a slash (`spark/source/micro_batches.py`)."""


@dataclass(slots=True)
class CheckpointFork:
    """Report of a forked checkpoint: the copy and the forks of its streams."""

    checkpoint: str
    """Full path of the copy, NAMESPACE/PATH."""
    source: str
    query: str
    """New id of the copy's query, which names its origin (`core/streams/metadata/transactions.py`)."""
    batch: int
    """The last batch that was done; a query that is started with the copy begins with the next one."""
    files: int = 0
    bytes: int = 0
    """Bytes of all files, which share their bytes with the source's."""
    streams: dict[str, str] = field(default_factory=dict)
    """The forks, by the full names of the streams that the query has read."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Offset at which each fork's own records begin, by its name."""


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A stream, and the fork that takes its place."""

    name: str
    old_uid: str
    uid: str


async def fork_checkpoint(
    client: Client,
    objects: Objects,
    path: str,
    new: str,
    *,
    batch: int | None = None,
    streams: bool = False,
    names: Mapping[str, str] | None = None,
) -> CheckpointFork:
    """Copy the checkpoint at `path` as of a batch, default the last that was done, to `new` of the same namespace.

    `streams`: fork the streams that the query reads at the offsets of that batch. A fork has the stream's name with
    the last part of `new` behind it, or the name that `names` has for the stream's full name, as it must for streams
    of other namespaces. Raises NoSuchObject,
    ObjectExists, StreamExists, OffsetOutOfRange if records of a stream below the batch were truncated, InvalidArgument
    if the batch was not done, or its state is not kept any more.
    """
    found = await check_checkpoint(objects, path, batch=batch, read=False)
    if found.batch is None:
        raise InvalidArgument(f"checkpoint {objects.namespace}/{path}: no batch was done yet, there is nothing to fork")
    refuse(objects.namespace, found)
    (taken,) = await objects.statuses(new)
    if taken is not None:
        raise ObjectExists(f"{objects.namespace}/{new}", "is there already; choose another name for the fork")
    query = forked_query(found.query, found.batch, client.services.runtime.rng.getrandbits(64))
    made = CheckpointFork(f"{objects.namespace}/{new}", f"{objects.namespace}/{path}", query, found.batch)
    renamed: dict[str, _Renamed] = {}
    if streams or names:
        text = (await objects.get(f"{path}/{OFFSETS}/{found.batch}")).decode()
        renamed = await _fork_streams(client, text, new.rpartition("/")[2], names or {}, made, objects.namespace)
    folder, _, last = new.rpartition("/")
    beside = f"{folder}/.{last}.{made.query}" if folder else f".{last}.{made.query}"
    try:
        await _copy(objects, path, beside, made, renamed)
        refuse(objects.namespace, await check_checkpoint(objects, beside, batch=made.batch, read=False))
        await objects.rename(beside, new, if_absent=True)
    except BaseException:
        with suppress(BuckramError):  # The first error is the one to report; the directory is no checkpoint of a query.
            await objects.remove(beside, recursive=True)
        raise
    return made


async def _copy(objects: Objects, path: str, new: str, made: CheckpointFork, renamed: Mapping[str, _Renamed]) -> None:
    async for name, info in files_of(objects, path):
        if not _belongs(name, made.batch):
            continue
        source, target = f"{path}/{name}", f"{new}/{name}"
        try:
            if name == METADATA:
                await objects.put(target, json.dumps({"id": made.query}).encode(), if_absent=True)
            elif name.startswith(f"{OFFSETS}/") and renamed:
                text = (await objects.get(source)).decode()
                await objects.put(target, rewritten(text, renamed).encode(), if_absent=True)
            else:
                await objects.copy(source, target, if_absent=True)
        except NoSuchObject:
            continue  # The running query has removed it; the check of the copy says whether it is needed.
        made.files += 1
        made.bytes += info.size


def _belongs(name: str, batch: int) -> bool:
    """Return whether a file is part of a checkpoint as of a batch. Files with a leading dot are still being written."""
    parts = name.split("/")
    if any(part.startswith(".") for part in parts):
        return False
    if parts[0] in (OFFSETS, COMMITS, SOURCES):
        number = parts[-1].removesuffix(".compact")
        return not number.isdecimal() or int(number) <= batch
    version = version_of(name) if parts[0] == STATE else None
    return version is None or version <= batch + 1


def rewritten(text: str, renamed: Mapping[str, _Renamed]) -> str:
    """Return a file of the log of offsets with the names and uids of forks in the place of their sources'."""
    version, about, *lines = text.split("\n")
    return "\n".join([version, about, *(_line(line, renamed) for line in lines)])


def _line(line: str, renamed: Mapping[str, _Renamed]) -> str:
    offset = as_json_line(line)
    if not isinstance(offset, dict) or not any(name in renamed for name in offset):
        return line
    return json.dumps(_offset(offset, renamed))


def _offset(offset: Mapping[str, Any], renamed: Mapping[str, _Renamed]) -> dict[str, Any]:
    """Return an offset with forks for streams, its keys in a query's own order, as Spark compares offsets as text."""
    places = {_new_name(name, renamed): place for name, place in offset.items() if "/" in name}
    found: dict[str, Any] = {name: places[name] for name in sorted(places)}
    for key, value in offset.items():
        if key == _UIDS:
            uids = {_new_name(name, renamed): _new_uid(name, uid, renamed) for name, uid in value.items()}
            found[key] = {name: uids[name] for name in sorted(uids)}
        elif key == TIMES:
            times = {_new_name(name, renamed): time for name, time in value.items()}
            found[key] = {name: times[name] for name in sorted(times)}
        elif key == _BEGAN:
            found[key] = _offset(value, renamed)
        elif "/" not in key:
            found[key] = value
    return found


def _new_name(name: str, renamed: Mapping[str, _Renamed]) -> str:
    return renamed[name].name if name in renamed else name


def _new_uid(name: str, uid: str, renamed: Mapping[str, _Renamed]) -> str:
    fork = renamed.get(name)
    return fork.uid if fork is not None and uid == fork.old_uid else uid


async def _fork_streams(
    client: Client, text: str, suffix: str, names: Mapping[str, str], made: CheckpointFork, namespace: str
) -> dict[str, _Renamed]:
    """Fork every stream in the offsets of a batch; return the forks by the names of their sources.

    Whoever writes in the checkpoint's namespace writes these offsets, so a stream of another one has to be in `names`.
    """
    ends: dict[str, tuple[int, str]] = {}
    for line in text.splitlines()[2:]:
        offset = as_json_line(line)
        if isinstance(offset, dict):
            uids = offset.get(_UIDS, {})
            for name, place in offset.items():
                if "/" in name:  # Two sources of a query may read one stream, and not be equally far.
                    ends[name] = max(ends.get(name, (0, "")), (int(place), str(uids.get(name, ""))))
    unknown = [name for name in names if name not in ends]
    if unknown or not ends:
        what = f"stream {unknown[0]}" if unknown else "any stream"
        raise InvalidArgument(f"{made.source}: its query does not read {what}; it reads {', '.join(ends) or 'none'}")
    foreign = [name for name in ends if name not in names and stream_name(name).namespace != namespace]
    if foreign:
        raise InvalidArgument(
            f"{made.source}: its query reads {foreign[0]}, which is in another namespace; if that is right, name the "
            f"fork: --stream {foreign[0]}={foreign[0]}-{suffix}"
        )
    renamed: dict[str, _Renamed] = {}
    for name, (at, uid) in ends.items():
        source = stream_name(name)
        fork = stream_name(names.get(name, f"{name}-{suffix}"))
        renamed[name] = await _fork_one(client, source, fork, at, uid)
        made.streams[name], made.offsets[str(fork)] = str(fork), at
    return renamed


async def _fork_one(client: Client, source: StreamName, fork: StreamName, at: int, uid: str) -> _Renamed:
    """Fork a stream, or take the fork that an earlier attempt has made of it at this offset."""
    ns = client.namespace(source.namespace)
    now = await ns.info(source.stream)
    if uid and now.uid != uid:
        raise NoSuchStream(str(source), "was deleted and made anew since that batch; fork the checkpoint alone")
    try:
        await ns.fork_stream(source.stream, str(fork), offset=at)
    except StreamExists:
        present = await ns.info(fork.stream)
        same = present.fork is not None and (present.fork.uid, present.fork.at) == (now.uid, at) and present.end == at
        if not same:
            raise
    return _Renamed(str(fork), now.uid, (await ns.info(fork.stream)).uid)
