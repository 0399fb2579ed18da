"""Namespaces: groups of streams with a policy. The namespace `default` always exists.

Not here: the streams within a namespace (`streams/namespace.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from buckram.client.shared.handles import NotCopied
from buckram.client.write.create import fitting
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.metadata.purposes import Act, purpose_of, refusal
from buckram.core.streams.names import DEFAULT_NAMESPACE, OBJECTS_LOG, StreamName, check_name
from buckram.core.streams.policy import DEFAULTS, check_overrides, merged
from buckram.core.streams.replication_links import check_creation
from buckram.core.tenants.quotas import Quotas
from buckram.errors import (
    AccessRefused,
    InvalidArgument,
    KeyExists,
    MalformedRecord,
    MetadataUnavailable,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchKey,
    NoSuchNamespace,
    NoSuchStream,
    VersionConflict,
)
from buckram.metadata.records.tenants import TenantStore
from buckram.streams.shared.layout import list_names
from buckram.streams.shared.metadata import StreamStore, head_retries
from buckram.types import CheckVersion, Create, KeyOp


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace's record. `policy` has only the settings that were set; `deleting`: its deletion has begun."""

    name: str
    policy: Mapping[str, Any]
    version: int
    deleting: bool = False
    fitted: bool = False
    """True if `fit_namespaces` chose its ensemble, as large as a small cluster is, and no user has chosen one since."""


class _Default(NamedTuple):
    """The ensemble that namespace default was fitted to, "" for none, and the condition that this is still so, None if
    that does not matter or cannot be known."""

    fitted: str
    same: CheckVersion | None


_ANY = _Default("", None)


class Namespaces(NotCopied):
    """Creates, lists, changes and deletes namespaces; from `client.namespaces`."""

    def __init__(self, streams: StreamStore) -> None:
        self._streams = streams
        self._default: _Default | None = None
        """State of namespace default that the last creation relied on; None if that may have changed since."""

    async def create(self, name: str, **policy: Any) -> NamespaceInfo:
        """Create a namespace with these settings (those of Policy in `core/streams/policy.py`). NamespaceExists.

        Where `buckram up` fitted namespace default to few bookies and no ensemble is given, the new one is fitted, too.
        """
        key, checked = self._key(name), check_overrides(policy)
        asks = "ensemble" not in checked and name != DEFAULT_NAMESPACE
        retries, doubt, tried = head_retries(), False, list[Mapping[str, Any]]()
        while True:
            remembered = self._default if asks else _ANY
            try:
                default = remembered or await self._read_default()
                wanted = {**checked, "ensemble": default.fitted} if default.fitted else checked
                tried.append(wanted)
                await self._make(Create(key, _encode(wanted, fitted=bool(default.fitted))), default)
                return NamespaceInfo(name, wanted, 0, fitted=bool(default.fitted))
            except KeyExists:
                present = await self.get(name)
                if doubt and present.version == 0 and present.policy in tried:
                    return present  # This call created it, and the reply was lost.
                raise NamespaceExists(name) from None
            except AccessRefused:
                if remembered is None or not asks:
                    raise
                self._default = None  # It may not be allowed any more to look at it, and that is no reason to refuse.
            except MetadataUnavailable as error:
                doubt = True
                await retries.wait(error)
            except (VersionConflict, NoSuchKey) as error:
                self._default = None
                await retries.wait(error)

    async def _make(self, op: Create, default: _Default) -> None:
        """Create the record of a namespace on condition that namespace default still is as it was read, so that
        `fit_namespaces`, which changes it first, finds the new one or excludes its creation."""
        if default.same is None:
            await self._streams.keys.create(op.key, op.value)
            return
        await self._streams.keys.multi([op, default.same])
        self._default = default

    async def _read_default(self) -> _Default:
        """Return how namespace default is fitted; not at all if it does not exist, or cannot be read."""
        key = self._key(DEFAULT_NAMESPACE)
        try:
            kept = await self._streams.keys.get(key)
        except (NoSuchKey, AccessRefused):
            return _ANY
        info = _decode(DEFAULT_NAMESPACE, key, kept.value, kept.version)
        fitted = str(info.policy.get("ensemble", "")) if info.fitted else ""
        return _Default(fitted, CheckVersion(key, kept.version))

    async def get(self, name: str) -> NamespaceInfo:
        """Return a namespace. NoSuchNamespace, except for `default`, which is created at its first use."""
        key, retries = self._key(name), head_retries()
        while True:
            try:
                kept = await self._streams.keys.get(key)
                return _decode(name, key, kept.value, kept.version)
            except NoSuchKey:
                if name != DEFAULT_NAMESPACE:
                    raise NoSuchNamespace(name) from None
                try:
                    await self._streams.keys.create(key, _encode({}))
                except (KeyExists, MetadataUnavailable) as error:
                    await retries.wait(error)
            except MetadataUnavailable as error:
                await retries.wait(error)

    async def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Return the names that begin with `prefix` and are greater than `after`, in order; none at the end."""
        return await list_names(self._streams.keys, self._streams.layout.namespaces, prefix, after, limit)

    async def set(self, name: str, **policy: Any) -> NamespaceInfo:
        """Change settings. None resets a setting to its default, which for retention settings is no retention."""
        return await self._change(name, policy, fitted=None)

    async def _fit(self, name: str, ensemble: str | None, usual: str) -> None:
        """Give a namespace the ensemble that fits a small cluster; None takes it back. A user's choice stays.

        `usual`: the ensemble that, without a marker of who chose it, is taken for unchosen.
        """
        info = await self.get(name)
        present = info.policy.get("ensemble")
        if present != ensemble and (info.fitted or present is None or present == usual):
            await self._change(name, {"ensemble": ensemble}, fitted=ensemble is not None)

    async def _change(self, name: str, changes: Mapping[str, Any], *, fitted: bool | None) -> NamespaceInfo:
        """Change settings. `fitted` marks the ensemble as fitted or as a user's choice.

        None leaves the mark as it is, and makes an ensemble among the changes a user's choice.
        """
        retries = head_retries()
        while True:
            info = await self.get(name)
            wanted = changed_policy(info.policy, changes)
            marked = info.fitted and "ensemble" not in changes if fitted is None else fitted
            try:
                version = await self._streams.keys.set(self._key(name), _encode(wanted, fitted=marked), info.version)
                return NamespaceInfo(name, wanted, version, fitted=marked)
            except (VersionConflict, MetadataUnavailable) as error:
                await retries.wait(error)

    async def delete(self, name: str) -> None:
        """Delete a namespace. NamespaceNotEmpty while it has streams; `default` cannot be deleted (InvalidArgument)."""
        if name == DEFAULT_NAMESPACE:
            raise InvalidArgument("namespace default always exists; delete its streams instead")
        key, keys = self._key(name), self._streams.keys
        info = await self.get(name)
        # A stream is created on condition of the namespace's version, so after this step creations that began before
        # it fail, and later ones see `deleting`.
        version = await keys.set(key, _encode(info.policy, deleting=True, fitted=info.fitted), info.version)
        rest = await self._streams.streams(name, limit=1)
        if rest:
            await keys.set(key, _encode(info.policy, fitted=info.fitted), version)
            raise NamespaceNotEmpty(name, f"{name}/{rest[0]}", await self._why_not(StreamName(name, rest[0])))
        await keys.delete(key, version)
        with suppress(AccessRefused):  # quotas are for administrators, who find them there when it is made again
            await TenantStore(self._streams.metadata).forget(name)

    async def _why_not(self, name: StreamName) -> str:
        """Return why a stream must not be deleted as a stream, with the right command; empty if it may be."""
        try:
            head = (await self._streams.read(name)).head
        except NoSuchStream:
            return ""
        return refusal(str(name), purpose_of(str(name), head), Act.DELETE)

    async def quotas(self, name: str) -> Quotas:
        """Return the quotas of a namespace. NoSuchNamespace."""
        await self.get(name)
        return await TenantStore(self._streams.metadata).quotas_of(name)

    async def set_quotas(self, name: str, **quotas: int | None) -> Quotas:
        """Change quotas; None takes one back. For administrators of the cluster. They hold within seconds.

        Names are the fields of Quotas in `core/tenants/quotas.py`. A quota below what is used is taken: nothing is
        deleted, and nothing more is stored until there is room. NoSuchNamespace, InvalidArgument.
        """
        await self.get(name)
        return await TenantStore(self._streams.metadata).set_quotas(name, quotas)

    async def restore(self, info: NamespaceInfo) -> None:
        """Undo a deletion that stopped half-way. VersionConflict if the namespace has changed since `info` was read."""
        await self._streams.keys.set(self._key(info.name), _encode(info.policy, fitted=info.fitted), info.version)

    def _key(self, name: str) -> str:
        return self._streams.layout.namespace(check_name("namespace", name))


async def fit_namespaces(streams: StreamStore, before: int, count: int) -> None:
    """Fit the ensembles of all namespaces to as few bookies as a cluster was started with, and widen them as it grows.

    `before`: the number of bookies until now, 0 for a new cluster. An ensemble that a user chose is not changed.
    """
    usual = DEFAULTS.quorum
    if min(before or count, count) >= usual.ensemble_size:
        return
    namespaces = Namespaces(streams)
    # Namespace default was fitted without a marker by earlier releases.
    ours = str(fitting(before, usual)) if 0 < before < usual.ensemble_size else ""
    wanted = str(fitting(count, usual)) if count < usual.ensemble_size else None
    await namespaces._fit(DEFAULT_NAMESPACE, wanted, ours)
    async for name in all_namespaces(namespaces):
        if name != DEFAULT_NAMESPACE:
            await namespaces._fit(name, wanted, "")


async def all_namespaces(namespaces: Namespaces, prefix: str = "") -> AsyncIterator[str]:
    """Yield the names of all namespaces that begin with `prefix`, in order, read in pages. Raises MetadataError."""
    after = ""
    while page := await namespaces.list(prefix=prefix, after=after):
        for name in page:
            yield name
        after = page[-1]


class NewStream(NamedTuple):
    """A stream as it was created, and its namespace, which was like that at the same moment."""

    head: Head
    namespace: NamespaceInfo


async def create_stream(streams: StreamStore, name: StreamName, head: Head, extra: Sequence[KeyOp] = ()) -> NewStream:
    """Create a stream with this head; `extra`: further operations for the same multi.

    It is created on condition that namespace and link of replication are unchanged since they were read here: a link is
    written together with the namespace's record, so a fence excludes a creation that began before it.

    Raises NoSuchNamespace, StreamExists, ReplicationRefused where the other cluster's side of the namespace is the one
    that is written, InvalidArgument for settings that do not go with the namespace's.
    """
    if name.stream == OBJECTS_LOG and (head.snapshots is None or head.properties):
        raise InvalidArgument(f"stream {name}: the name is that of the index of objects; choose another")
    namespaces, link_key = Namespaces(streams), streams.layout.link(name.namespace)
    while True:
        space, link = await asyncio.gather(namespaces.get(name.namespace), streams.link(name.namespace))
        if space.deleting:
            raise NoSuchNamespace(name.namespace)
        merged(space.policy, head.policy)
        copied = head.mirror is not None and head.mirror.state == MIRROR
        mirrored = link is not None and link.state == MIRROR and not link.tentative
        if head.fork is None or not mirrored:  # Forks of a mirror are for readers.
            check_creation(name.namespace, name.stream, link, head.mirror.cluster if head.mirror and copied else "")
        same = [] if link is None else [CheckVersion(link_key, link.version)]
        try:
            return NewStream(await streams.create(name, head, space.version, [*same, *extra]), space)
        except VersionConflict:
            continue
        except NoSuchKey as error:
            if error.key != link_key:
                raise


def changed_policy(present: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with the changes applied; None removes an override. InvalidArgument for unknown settings."""
    checked = check_overrides({name: value for name, value in changes.items() if value is not None})
    check_overrides({name: value for name, value in changes.items() if value is None and name.startswith("retention")})
    kept = {name: value for name, value in present.items() if name not in changes}
    return {**kept, **checked}


def _encode(policy: Mapping[str, Any], *, deleting: bool = False, fitted: bool = False) -> bytes:
    mark = {"fitted": True} if fitted else {}
    return json.dumps({"format": 1, "policy": dict(policy), "deleting": deleting, **mark}).encode()


def _decode(name: str, key: str, value: bytes, version: int) -> NamespaceInfo:
    try:
        raw = json.loads(value)
        policy = raw["policy"]
        if not isinstance(policy, dict):
            raise TypeError("no policy")
        return NamespaceInfo(name, policy, version, raw.get("deleting") is True, raw.get("fitted") is True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"{key}: not a namespace ({error!r}); restore it from a backup") from None
