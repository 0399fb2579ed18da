"""Namespaces: groups of streams with a policy. The namespace `default` always exists.

Not here: the streams within a namespace (`streams/namespace.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from buckram.core.streams.head import Head
from buckram.core.streams.names import DEFAULT_NAMESPACE, StreamName, check_name
from buckram.core.streams.policy import check_overrides, merged
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
    VersionConflict,
)
from buckram.metadata.tenants import TenantStore
from buckram.streams.shared.metadata import StreamStore, head_retries
from buckram.types import KeyOp


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace's record. `policy` has only the settings that were set; `deleting`: its deletion has begun."""

    name: str
    policy: Mapping[str, Any]
    version: int
    deleting: bool = False


class Namespaces:
    """Creates, lists, changes and deletes namespaces; from `client.namespaces`."""

    def __init__(self, streams: StreamStore) -> None:
        self._streams = streams

    async def create(self, name: str, **policy: Any) -> NamespaceInfo:
        """Create a namespace with these settings (those of Policy in `core/streams/policy.py`). NamespaceExists."""
        key, value = self._key(name), _encode(check_overrides(policy))
        retries, doubt = head_retries(), False
        while True:
            try:
                return NamespaceInfo(name, policy, await self._streams.keys.create(key, value))
            except KeyExists:
                present = await self.get(name)
                if doubt and present.version == 0 and present.policy == policy:
                    return present  # This call created it, and the reply was lost.
                raise NamespaceExists(name) from None
            except MetadataUnavailable as error:
                doubt = True
                await retries.wait(error)

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
        return await list_names(self._streams, self._streams.layout.namespaces, prefix, after, limit)

    async def set(self, name: str, **policy: Any) -> NamespaceInfo:
        """Change settings. None resets a setting to its default, which for retention settings is no retention."""
        retries = head_retries()
        while True:
            info = await self.get(name)
            wanted = changed_policy(info.policy, policy)
            try:
                version = await self._streams.keys.set(self._key(name), _encode(wanted), info.version)
                return NamespaceInfo(name, wanted, version)
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
        version = await keys.set(key, _encode(info.policy, deleting=True), info.version)
        rest = await self._streams.streams(name, limit=1)
        if rest:
            await keys.set(key, _encode(info.policy), version)
            raise NamespaceNotEmpty(name, f"{name}/{rest[0]}")
        await keys.delete(key, version)
        with suppress(AccessRefused):  # quotas are for administrators, who find them there when it is made again
            await TenantStore(self._streams.metadata).forget(name)

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
        await self._streams.keys.set(self._key(info.name), _encode(info.policy), info.version)

    def _key(self, name: str) -> str:
        return self._streams.layout.namespace(check_name("namespace", name))


async def create_stream(streams: StreamStore, name: StreamName, head: Head, extra: Sequence[KeyOp] = ()) -> Head:
    """Create a stream with this head; `extra`: further operations for the same multi.

    Raises NoSuchNamespace, StreamExists, InvalidArgument for settings that do not go with the namespace's.
    """
    namespaces = Namespaces(streams)
    while True:
        space = await namespaces.get(name.namespace)
        if space.deleting:
            raise NoSuchNamespace(name.namespace)
        merged(space.policy, head.policy)
        try:
            return await streams.create(name, head, space.version, extra)
        except VersionConflict:
            continue


def changed_policy(present: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with the changes applied; None removes an override. InvalidArgument for unknown settings."""
    checked = check_overrides({name: value for name, value in changes.items() if value is not None})
    check_overrides({name: value for name, value in changes.items() if value is None and name.startswith("retention")})
    kept = {name: value for name, value in present.items() if name not in changes}
    return {**kept, **checked}


async def list_names(streams: StreamStore, parent: str, prefix: str, after: str, limit: int) -> list[str]:
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
        page = await streams.keys.children(parent, after=start, limit=max(limit, 100))
        for name in page:
            if name.startswith(prefix):
                found.append(name)
            elif name > prefix:
                return found[:limit]
        if not page:
            break
        start = page[-1]
    return found[:limit]


def _encode(policy: Mapping[str, Any], *, deleting: bool = False) -> bytes:
    return json.dumps({"format": 1, "policy": dict(policy), "deleting": deleting}).encode()


def _decode(name: str, key: str, value: bytes, version: int) -> NamespaceInfo:
    try:
        raw = json.loads(value)
        policy = raw["policy"]
        if not isinstance(policy, dict):
            raise TypeError("no policy")
        return NamespaceInfo(name, policy, version, raw.get("deleting") is True)
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRecord(f"{key}: not a namespace ({error!r}); restore it from a backup") from None
