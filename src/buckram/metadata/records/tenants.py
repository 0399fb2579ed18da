"""The tenants' records in the metadata store: quotas of namespaces, and their usage.

Below `own`/tenants: `on` (bookies count and limit; without it they do neither), `quotas/NAMESPACE`, `usage/BOOKIE` as
each bookie counts it, `counts` by one of them, and `creations/NAMESPACE`, which changes with each stream that is made
within a quota. Quotas are no part of a namespace's policy, which the namespace's own administrators may change. Not
here: what quotas and usage are (`core/tenants`), counting (`bookie/accounting/namespace_usage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from buckram.core.streams.names import check_name
from buckram.core.tenants.quotas import (
    NONE,
    Counts,
    Quotas,
    Usage,
    encode_counts,
    encode_usage,
    parse_counts,
    parse_usage,
    summed,
)
from buckram.errors import (
    KeyExists,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.tree.key_operations import all_children, overwrite, remove
from buckram.metadata.tree.layout import TENANTS
from buckram.seams import KeyStore, MetadataStore, Notify
from buckram.types import BookieId, Create, SetValue

_TRIES = 20


@dataclass(frozen=True, slots=True)
class Published:
    """Usage that bookies have published. `rounds`: a number for each bookie that grows for as long as it counts."""

    bookies: Mapping[BookieId, Mapping[str, Usage]] = field(default_factory=dict)
    rounds: Mapping[BookieId, int] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    counts_round: int = 0

    @property
    def total(self) -> dict[str, Usage]:
        return summed(self.bookies.values())


class TenantStore:
    """Reads and changes these keys."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._folder = f"{store.own}/{TENANTS}"

    @property
    def _keys(self) -> KeyStore:
        return self._store.keys

    def _path(self, *parts: str) -> str:
        return "/".join((self._folder, *parts))

    # Whether bookies count

    async def is_on(self, watch: Notify | None = None) -> bool:
        """Return whether bookies shall count usage; `watch` fires once when that changes. Raises MetadataError."""
        names = await self._keys.children(self._folder, watch=watch)
        return "on" in names

    async def turn_on(self) -> None:
        """Have all bookies count usage and enforce quotas from now on."""
        with suppress(KeyExists):
            await self._keys.create(self._path("on"), b"{}")

    async def turn_off(self) -> None:
        """Have bookies neither count usage nor enforce quotas any more; quotas stay for when they are turned
        on again.
        """
        await remove(self._keys, self._path("on"))

    # Quotas

    async def quotas(self) -> dict[str, Quotas]:
        """Return all quotas, by namespace. A record that does not parse counts as none. Raises MetadataError."""
        found: dict[str, Quotas] = {}
        async for name, value in all_children(self._keys, self._path("quotas")):
            with suppress(ValueError):
                found[name] = Quotas.parse(value.value)
        return found

    async def quotas_of(self, namespace: str) -> Quotas:
        """Return the quotas of one namespace. Raises MalformedRecord, MetadataError."""
        return (await self._quotas_of(namespace))[0]

    async def _quotas_of(self, namespace: str) -> tuple[Quotas, int | None]:
        key = self._path("quotas", check_name("namespace", namespace))
        try:
            found = await self._keys.get(key)
        except NoSuchKey:
            return NONE, None
        try:
            return Quotas.parse(found.value), found.version
        except ValueError as error:
            raise MalformedRecord(f"{key}: {error}; set the quotas of {namespace} anew after deleting it") from None

    async def set_quotas(self, namespace: str, changes: Mapping[str, int | None]) -> Quotas:
        """Change some quotas, where None removes one. Usage is counted from then on if a quota is set.

        Raises InvalidArgument, MetadataError.
        """
        key = self._path("quotas", namespace)
        for _ in range(_TRIES):
            present, version = await self._quotas_of(namespace)
            wanted = present.changed(changes)
            if wanted:
                await self.turn_on()
            with suppress(KeyExists, VersionConflict, NoSuchKey):
                if version is None:
                    if wanted:
                        await self._keys.create(key, wanted.encode())
                elif wanted:
                    await self._keys.set(key, wanted.encode(), version)
                else:
                    await self._keys.delete(key, version)
                return wanted
        raise MetadataUnavailable(f"{key}: others changed it {_TRIES} times meanwhile; try again")

    async def forget(self, namespace: str) -> None:
        """Remove the quotas of a namespace that was deleted."""
        await remove(self._keys, self._path("quotas", namespace))
        await remove(self._keys, self._path("creations", namespace))

    async def turn(self, namespace: str) -> Create | SetValue:
        """Return an operation to add to a change that creates streams within a quota.

        Read it before the streams are counted: of two changes at the same time, through whichever bookies, only one
        finds this as it was, and the other counts again.
        """
        key = self._path("creations", check_name("namespace", namespace))
        try:
            return SetValue(key, b"", (await self._keys.get(key)).version)
        except NoSuchKey:
            return Create(key, b"")

    # Usage

    async def publish(self, bookie: BookieId, found: Mapping[str, Usage], round_number: int) -> None:
        """Publish what namespaces use on one bookie; only it calls this. Raises MetadataError."""
        await overwrite(self._keys, self._path("usage", bookie), encode_usage(found, round_number))

    async def publish_counts(self, found: Mapping[str, Counts], round_number: int) -> None:
        """Publish what namespaces have by their records. Raises MetadataError."""
        await overwrite(self._keys, self._path("counts"), encode_counts(found, round_number))

    async def published(self) -> Published:
        """Return what bookies published last; records that do not parse are left out. Raises MetadataError."""
        bookies: dict[BookieId, Mapping[str, Usage]] = {}
        rounds: dict[BookieId, int] = {}
        async for name, value in all_children(self._keys, self._path("usage")):
            with suppress(ValueError):
                bookies[name], rounds[name] = parse_usage(value.value)
        counts: dict[str, Counts] = {}
        number = 0
        with suppress(NoSuchKey, ValueError):
            counts, number = parse_counts((await self._keys.get(self._path("counts"))).value)
        return Published(bookies, rounds, counts, number)

    async def drop(self, bookie: BookieId) -> None:
        """Remove the usage published by a bookie that is no part of the cluster any more."""
        await remove(self._keys, self._path("usage", bookie))
