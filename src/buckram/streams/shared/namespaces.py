"""Namespaces: a name, a policy, and the streams in it. `default` always exists. Streams themselves are namespace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buckram.core.streams.names import DEFAULT_NAMESPACE, check_name
from buckram.core.streams.policy import check_overrides
from buckram.errors import (
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
from buckram.streams.shared.metadata import StreamStore, head_retries


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """`policy`: only what is set for it."""

    name: str
    policy: Mapping[str, Any]
    version: int
    deleting: bool = False


class Namespaces:
    """Create, list, set and delete namespaces; from `client.namespaces`."""

    def __init__(self, streams: StreamStore) -> None:
        self._streams = streams

    async def create(self, name: str, **policy: Any) -> NamespaceInfo:
        """NamespaceExists. `policy`: settings of core/streams/policy.Policy."""
        key, value = self._key(name), _encode(check_overrides(policy))
        retries, doubt = head_retries(), False
        while True:
            try:
                return NamespaceInfo(name, policy, await self._streams.keys.create(key, value))
            except KeyExists:
                present = await self.get(name)
                if doubt and present.version == 0 and present.policy == policy:
                    return present  # our own, whose answer was lost
                raise NamespaceExists(name) from None
            except MetadataUnavailable as error:
                doubt = True
                await retries.wait(error)

    async def get(self, name: str) -> NamespaceInfo:
        """NoSuchNamespace; `default` is made when it is first asked for."""
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
        """Names in order, those greater than `after`; empty at the end."""
        return await list_names(self._streams, self._streams.layout.namespaces, prefix, after, limit)

    async def set(self, name: str, **policy: Any) -> NamespaceInfo:
        """Change settings; a value of None takes a setting back to its default (or means "no retention")."""
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
        """NamespaceNotEmpty while it has streams. `default` cannot be deleted."""
        if name == DEFAULT_NAMESPACE:
            raise InvalidArgument("namespace default always exists; delete its streams instead")
        key, keys = self._key(name), self._streams.keys
        info = await self.get(name)
        # A stream is created while the namespace is at a known version: this step makes older ones fail.
        version = await keys.set(key, _encode(info.policy, deleting=True), info.version)
        rest = await self._streams.streams(name, limit=1)
        if rest:
            await keys.set(key, _encode(info.policy), version)
            raise NamespaceNotEmpty(name, f"{name}/{rest[0]}")
        await keys.delete(key, version)

    async def restore(self, info: NamespaceInfo) -> None:
        """Take back a deletion that stopped half-way, if nothing happened since `info`; else VersionConflict."""
        await self._streams.keys.set(self._key(info.name), _encode(info.policy), info.version)

    def _key(self, name: str) -> str:
        return self._streams.layout.namespace(check_name("namespace", name))


def changed_policy(present: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with changes over them; None takes one back."""
    checked = check_overrides({name: value for name, value in changes.items() if value is not None})
    check_overrides({name: value for name, value in changes.items() if value is None and name.startswith("retention")})
    kept = {name: value for name, value in present.items() if name not in changes}
    return {**kept, **checked}


async def list_names(streams: StreamStore, parent: str, prefix: str, after: str, limit: int) -> list[str]:
    """Children that begin with `prefix`, in order, greater than `after`."""
    if type(limit) is not int or limit < 1 or not isinstance(prefix, str) or not isinstance(after, str):
        raise InvalidArgument(
            f"list(prefix={prefix!r}, after={after!r}, limit={limit!r}): needs names, and a limit from 1 on"
        )
    found: list[str] = []
    # The last string before the prefix's own range: names come in order, so nothing before it is read.
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
