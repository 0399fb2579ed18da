"""Directories of bookies whose cluster's metadata are gone: what is there is not joined to another cluster.

Asked before anything is created. Not here: the check of one bookie's cookie against its copy
(`bookie/trust/cookie.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from buckram.bookie.trust.cookie import COOKIE_FILE, LARGEST_COOKIE
from buckram.core.cluster.cookie import parse_cookie
from buckram.errors import ClusterNotInitialised, MalformedRecord, WrongCluster
from buckram.seams import MetadataStore

_NAMED = 3


class _Owned(NamedTuple):
    directory: Path
    bookie_id: str
    cluster: str


async def refuse_lost(store: MetadataStore, directories: Iterable[Path], advice: str = "") -> None:
    """Raise WrongCluster if bookies have data here and none of it is of the cluster that `store` holds, or it holds
    none. `advice`: what has to be done first."""
    owned = [found for directory in directories if (found := _owner(directory)) is not None]
    if not owned:
        return
    try:
        there = await store.instance_id()
    except ClusterNotInitialised:
        there = ""
    if any(one.cluster == there for one in owned):
        return
    raise WrongCluster(_message(store.uri, there, owned, advice))


def _message(uri: str, there: str, owned: list[_Owned], advice: str) -> str:
    shown = "; ".join(
        f"{one.directory} has data of bookie {one.bookie_id}, cluster {one.cluster}" for one in owned[:_NAMED]
    )
    more = f" and {len(owned) - _NAMED} more directories" if len(owned) > _NAMED else ""
    what = f"is another cluster, {there}" if there else "has no cluster: its metadata was lost, or is elsewhere"
    place = "an empty place" if there else uri
    return (
        f"{shown}{more}; but {uri} {what}. Nothing was created. {advice}Name the right metadata or put it back, or "
        f"restore a backup to {place}: `buckram cluster restore FILE --metadata {'URI' if there else uri}`. A new "
        "cluster could read nothing of what is there; docs/howto/runbooks/metadata-went-back.md goes on from here"
    )


def _owner(directory: Path) -> _Owned | None:
    """Return the owner of a directory by its cookie; None if there is no readable cookie, or one without an instance
    id."""
    try:
        with (directory / COOKIE_FILE).open("rb") as file:
            cookie = parse_cookie(file.read(LARGEST_COOKIE))
    except (OSError, MalformedRecord):
        return None
    return _Owned(directory, cookie.bookie_host, cookie.instance_id) if cookie.instance_id else None


__all__ = ["refuse_lost"]
