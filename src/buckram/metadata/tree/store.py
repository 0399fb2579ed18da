"""`TreeStore`: ledgers, registrations, cookies and ids on any KeyStore.

Defines which keys there are and which conditions hold for them; the trees themselves are memory and sqlite, record
bytes are core/ledgers/metadata_codec, the compare-and-set loop of an operation is the client's. A lost reply
(MetadataUnavailable) is never hidden here: only the caller knows how to find out what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace

from buckram.core.cluster.store_history import encode_history, parse_history
from buckram.core.ledgers.metadata_codec import parse, serialise
from buckram.core.ledgers.service_info import check_bookie_id, decode_bookie, encode_bookie, valid_bookie_id
from buckram.errors import (
    AlreadyRegistered,
    ClusterNotInitialised,
    InvalidArgument,
    KeyExists,
    LedgerExists,
    LedgerIdUsed,
    MalformedRecord,
    NoSuchKey,
    NoSuchLedger,
    VersionConflict,
)
from buckram.metadata.tree.key_operations import WatchHub, all_names
from buckram.metadata.tree.layout import ClusterLayout, Layout
from buckram.metadata.tree.ledger_tree import FolderTree, Fresh, LedgerTree
from buckram.seams import KeyStore, Notify
from buckram.types import (
    BookieId,
    BookieInfo,
    BookieSet,
    CheckVersion,
    Create,
    History,
    KeyOp,
    KeyValue,
    LedgerId,
    LedgerMetadata,
    SetValue,
    Versioned,
)

_PAGE = 1000
_MAX_GIVEN = 100_000
UNREADABLE = "restore the record from a backup, or read and mend it with the software that wrote it"


class TreeStore:
    """The MetadataStore of one session. Close it to end the session (and `keys` with it).

    `layout` and `ledgers` belong together and define where things are; without them all ledgers are in one folder.
    `takeover_wait_s`: how long `register` waits for a registration under the same id that is not ours, such as the one
    of the process before, whose session has not ended yet.
    """

    def __init__(
        self,
        keys: KeyStore,
        uri: str,
        rng: random.Random,
        *,
        layout: ClusterLayout | None = None,
        ledgers: LedgerTree | None = None,
        takeover_wait_s: float = 10.0,
    ) -> None:
        self.uri = uri
        self._keys = keys
        self._rng = rng
        folder = Layout()
        self._layout: ClusterLayout = layout or folder
        self.ledgers: LedgerTree = ledgers or FolderTree(keys, folder)
        self._takeover_wait_s = takeover_wait_s
        self._hub = WatchHub(keys)
        self._given: dict[LedgerId, Fresh | None] = {}
        """Ids that this store allocated and that no ledger was made with yet, each with the conditions that hold unless
        the metadata were restored since; None once a creation was tried.
        """
        self._history_seen: int | None = None

    @property
    def keys(self) -> KeyStore:
        return self._keys

    @property
    def own(self) -> str:
        return self._layout.own

    @property
    def root(self) -> str:
        return self._layout.root

    @property
    def layout(self) -> ClusterLayout:
        return self._layout

    async def initialise(self) -> str:
        """Set up a new cluster or find the existing one; return its instance id (idempotent, also among processes)."""
        await self._keys.prepare()
        try:
            return await self.instance_id()
        except ClusterNotInitialised:
            pass
        chosen, layout = self._uuid(), self._layout
        first = encode_history(History(1, self._uuid()))
        try:
            await self._keys.multi([Create(layout.instance_id, chosen.encode()), Create(layout.history, first)])
        except KeyExists:
            return await self.instance_id()
        return chosen

    async def take_over(self, instance_id: str) -> None:
        """Make an empty cluster with the instance id of one whose metadata are to come here; idempotent."""
        with contextlib.suppress(KeyExists):
            await self._keys.create(self._layout.instance_id, instance_id.encode())

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    async def instance_id(self) -> str:
        """Return the cluster's UUID. Raises ClusterNotInitialised if there is none yet."""
        try:
            return (await self._keys.get(self._layout.instance_id)).value.decode("ascii", "replace")
        except NoSuchKey:
            raise ClusterNotInitialised(self.uri) from None

    async def identity_required(self, watch: Notify | None = None) -> bool:
        try:
            await self._keys.get(self._layout.required_identity, watch)
        except NoSuchKey:
            return False
        return True

    async def require_identity(self, required: bool) -> None:
        key = self._layout.required_identity
        if required:
            with contextlib.suppress(KeyExists):
                await self._keys.create(key, b"1")
            return
        with contextlib.suppress(NoSuchKey):
            await self._keys.delete(key, (await self._keys.get(key)).version)

    async def sync(self) -> None:
        """Make sure that what is read afterwards is at least as new as this call."""
        await self._keys.sync()

    async def history(self, watch: Notify | None = None) -> History:
        key = self._layout.history
        await self._keys.sync()
        try:
            return parse_history(key, (await self._keys.get(key, watch)).value)
        except NoSuchKey:
            return History()

    async def begin_history(self) -> History:
        """Begin the history of a cluster of an older release, which has none; several bookies may do so at the same
        time.
        """
        with contextlib.suppress(KeyExists):  # another one was first
            await self._keys.create(self._layout.history, encode_history(History(1, self._uuid())))
        return await self.history()

    async def reopen(self) -> None:
        reopen = getattr(self._keys, "reopen", None)
        if reopen is not None:  # only a file can be another one under its old name
            await reopen()

    # Ledgers

    async def allocate_ledger_id(self) -> LedgerId:
        """Return an id that no allocation gave before. Only the ledger's creation decides that it is unused."""
        since = await self.since()
        ledger_id = await self.ledgers.allocate()
        self._given[ledger_id] = since
        if len(self._given) > _MAX_GIVEN:
            del self._given[next(iter(self._given))]
        return ledger_id

    async def since(self) -> Fresh:
        """Return conditions that hold unless the metadata are restored later; to be read before an id is allocated.

        Raises MetadataError.
        """
        if self._history_seen is None:
            try:
                self._history_seen = (await self._keys.get(self._layout.history)).version
            except NoSuchKey:
                return ()
        return (CheckVersion(self._layout.history, self._history_seen),)

    async def create_record(self, ledger_id: LedgerId, record: bytes, *, chosen: bool, fresh: Fresh | None) -> int:
        """Create as `LedgerTree.create` does, which checks all that is known of the id if the metadata were restored
        since.
        """
        try:
            return await self.ledgers.create(ledger_id, record, chosen=chosen, fresh=fresh)
        except (VersionConflict, NoSuchKey) as error:
            if not fresh or error.key != fresh[0].key:
                raise
        # The metadata were restored since the id was allocated: it may be that of another ledger, or a deleted one's.
        self._history_seen = None
        self.ledgers.forget_ids()
        return await self.ledgers.create(ledger_id, record, chosen=chosen)

    async def raise_next_id(self, above: LedgerId) -> None:
        """Have no id up to `above` allocated: for a store that was restored to an older state."""
        await self.ledgers.raise_next_id(above)

    async def next_ledger_id(self) -> LedgerId:
        """Return the id from which on none was ever allocated."""
        return await self.ledgers.next_id()

    async def create_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Versioned:
        """Create the record.

        Raises LedgerExists unless the existing one carries the same non-zero creator token; LedgerIdUsed for an id that
        this store did not give and that was a ledger's before.

        The token makes it safe to repeat a creation whose reply was lost: updates erase it, so whoever finds it finds
        the record as it was created.
        """
        used: LedgerExists | None = None
        chosen, fresh = ledger_id not in self._given, self._given.get(ledger_id)
        if fresh is not None:  # after this attempt another process may have found the ledger, and deleted it
            self._given[ledger_id] = None
        try:
            version = await self.create_record(ledger_id, serialise(metadata), chosen=chosen, fresh=fresh)
            self._given.pop(ledger_id, None)
            return Versioned(metadata, version)
        except LedgerIdUsed as error:
            used = error  # maybe by this process, if the reply was lost
        except KeyExists:
            self._given.pop(ledger_id, None)
            if not metadata.creator_token:
                raise LedgerExists(ledger_id) from None
        try:
            found = await self.read_ledger(ledger_id)
        except (NoSuchLedger, MalformedRecord) as error:
            # Created and deleted in between: creating it again would bring a deleted ledger back to life. And what
            # cannot be read is not ours.
            raise (used if used and isinstance(error, NoSuchLedger) else LedgerExists(ledger_id)) from None
        if not metadata.creator_token or found.metadata.creator_token != metadata.creator_token:
            raise LedgerExists(ledger_id)
        return found

    async def read_ledger(self, ledger_id: LedgerId, watch: Notify | None = None) -> Versioned:
        """Return the record with its version.

        Raises NoSuchLedger if absent, with the watch set; MalformedRecord if unreadable.
        """
        key = await self.ledger_key(ledger_id)
        try:
            found = await self._keys.get(key, watch)
        except NoSuchKey:
            raise NoSuchLedger(ledger_id) from None
        return _parsed(ledger_id, key, found)

    async def ledger_key(self, ledger_id: LedgerId) -> str:
        """Return the key of the record.

        Raises NoSuchLedger for an id that this store cannot keep, because bookies ask for whatever ids they are sent.
        """
        try:
            return await self.ledgers.key(ledger_id)
        except InvalidArgument:
            raise NoSuchLedger(ledger_id) from None

    async def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned:
        """Replace the record if `version` is current. The creator token becomes 0, as every peer's update does."""
        metadata = replace(metadata, creator_token=0) if metadata.creator_token else metadata
        key = await self.ledger_key(ledger_id)
        try:
            written = await self._keys.set(key, serialise(metadata), version)
        except NoSuchKey:
            raise NoSuchLedger(ledger_id) from None
        return Versioned(metadata, written)

    async def delete_ledger(self, ledger_id: LedgerId, version: int) -> None:
        """Delete the record, and record in the same step that the ledger was deleted: bookies act on that."""
        await self.ledger_key(ledger_id)
        try:
            await self.ledgers.remove(ledger_id, version)
        except NoSuchKey:
            raise NoSuchLedger(ledger_id) from None

    async def list_ledgers(self, *, after: LedgerId = -1, limit: int = _PAGE) -> list[LedgerId]:
        return await self.ledgers.page(after, limit)

    async def read_ledgers(
        self, *, after: LedgerId = -1, limit: int = _PAGE
    ) -> list[tuple[LedgerId, Versioned | MalformedRecord]]:
        read: list[tuple[LedgerId, Versioned | MalformedRecord]] = []
        for ledger_id, found in await self.ledgers.records(after, limit):
            try:
                read.append((ledger_id, _parsed(ledger_id, "", found)))
            except MalformedRecord as error:
                read.append((ledger_id, error))
        return read

    # Bookies

    async def register(self, info: BookieInfo, *, readonly: bool, when: Sequence[CheckVersion] = ()) -> None:
        """Register, switch between writable and read-only, or refresh. Raises AlreadyRegistered if the id is live
        elsewhere.

        While it switches a bookie is in both lists, never in none. No new key is made if one of `when` has changed
        (VersionConflict, NoSuchKey).
        """
        value = encode_bookie(info)
        new, old = (self._layout.registration(info.bookie_id, readonly=side) for side in (readonly, not readonly))
        for key in (new, old):
            await self._wait_until_ours(info.bookie_id, key)
        await self._check_cluster()
        try:
            await self._create(new, value, when)
        except KeyExists:
            found = await self._get(new)
            if found is None or not found.owned:
                raise AlreadyRegistered(info.bookie_id, 0) from None
            if found.value != value:
                await self._keys.set(new, value, found.version)
        await self._delete_ours(old)

    async def _create(self, key: str, value: bytes, when: Sequence[CheckVersion]) -> None:
        if when:
            await self._keys.multi([*when, Create(key, value, ephemeral=True)])
        else:
            await self._keys.create(key, value, ephemeral=True)

    async def _check_cluster(self) -> None:
        """Raise if the cluster is not the one that this process began with. An embedded one cannot be another."""

    async def _wait_until_ours(self, bookie_id: BookieId, key: str) -> None:
        """Wait until `key` is absent or ours, for at most takeover_wait_s."""
        found = await self._get(key)
        if found is None or found.owned:
            return  # without a watch, which would stay as long as the registration does
        try:
            async with asyncio.timeout(self._takeover_wait_s):
                while True:
                    changed = asyncio.Event()
                    found = await self._get(key, changed.set)
                    if found is None or found.owned:
                        return
                    await changed.wait()
        except TimeoutError:
            raise AlreadyRegistered(bookie_id, self._takeover_wait_s) from None

    async def unregister(self, bookie_id: BookieId) -> None:
        """Take this session's registration back; one of another session stays."""
        check_bookie_id(bookie_id)
        for readonly in (False, True):
            await self._delete_ours(self._layout.registration(bookie_id, readonly=readonly))

    async def _get(self, key: str, watch: Notify | None = None) -> KeyValue | None:
        try:
            return await self._keys.get(key, watch)
        except NoSuchKey:
            return None

    async def _delete_ours(self, key: str) -> None:
        found = await self._get(key)
        if found is None or not found.owned:
            return
        try:
            await self._keys.delete(key, found.version)
        except NoSuchKey:
            return

    async def bookies(self, watch: Notify | None = None) -> BookieSet:
        """Return the bookies that are registered now. The watch fires when a bookie registers, leaves or changes its
        registration.
        """
        if watch is not None:
            self._hub.subscribe(watch)
        watched = watch is not None
        writable: dict[BookieId, BookieInfo] = {}
        readonly: dict[BookieId, BookieInfo] = {}
        await self._add_registered(writable, readonly=False, watched=watched)
        await self._add_registered(readonly, readonly=True, watched=watched)
        # Once more, or a bookie that turned writable between the two readings would be in neither.
        await self._add_registered(writable, readonly=False, watched=watched)
        return BookieSet(dict(sorted(writable.items())), readonly)

    async def _add_registered(self, found: dict[BookieId, BookieInfo], *, readonly: bool, watched: bool) -> None:
        parent = self._layout.registrations(readonly=readonly)
        after = ""
        while True:
            names = await self._hub.children(parent, after, _PAGE, watched=watched)
            for name in names:
                if name in found or not valid_bookie_id(name):  # the folder of the read-only ones
                    continue
                try:
                    value = await self._hub.get(self._layout.registration(name, readonly=readonly), watched=watched)
                except NoSuchKey:
                    continue
                found[name] = decode_bookie(name, value.value)
            if len(names) < _PAGE:
                return
            after = names[-1]

    async def known_bookies(self) -> list[BookieId]:
        return [name async for name in all_names(self._keys, self._layout.cookies) if valid_bookie_id(name)]

    async def read_cookie(self, bookie_id: BookieId) -> KeyValue:
        return await self._keys.get(self.cookie_key(bookie_id))

    def cookie_key(self, bookie_id: BookieId) -> str:
        return self._layout.cookie(check_bookie_id(bookie_id))

    async def write_cookie(
        self, bookie_id: BookieId, cookie: bytes, version: int | None, also: Sequence[KeyOp] = ()
    ) -> int:
        key = self.cookie_key(bookie_id)
        if also:
            first = Create(key, cookie) if version is None else SetValue(key, cookie, version)
            await self._keys.multi([first, *also])
            return 0 if version is None else version + 1
        if version is None:
            return await self._keys.create(key, cookie)
        return await self._keys.set(key, cookie, version)

    async def delete_cookie(self, bookie_id: BookieId, version: int) -> None:
        await self._keys.delete(self.cookie_key(bookie_id), version)

    def session_ticket(self) -> str:
        return ""

    async def end_session(self, ticket: str) -> None:
        """Do nothing: a dead process's session is over here."""

    def on_session_lost(self, notify: Notify) -> None:
        self._keys.on_session_lost(notify)

    async def close(self) -> None:
        await self._keys.close()


def _parsed(ledger_id: LedgerId, key: str, found: KeyValue) -> Versioned:
    try:
        return Versioned(parse(found.value), found.version)
    except MalformedRecord as error:
        where = f", {key}" if key else ""
        raise MalformedRecord(f"ledger {ledger_id}{where}: {error}; {UNREADABLE}") from None
