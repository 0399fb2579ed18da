"""Registers the bookie in the metadata store as writable or read-only, and again after a lost session.

The bookie serves whether or not it is registered; the registration only tells clients where it is. At the start, two
more things are done here. A bookie takes over from a killed process of the same directory by ending its metadata
session at once; otherwise the old registration would stay until the session expires (ten seconds on ZooKeeper), and the
new process may not treat it as its own. The lock of the directory proves that the old process is dead, and
`Disk.identity` proves that the directory is not a copy of one whose bookie is alive. And a bookie without logins is
refused in a cluster with logins, unless a setting allows it, because it would give away copies of what they protect.

A bookie also tells the cluster on which host it runs, so that no two copies of an entry are put there. That is not an
address: containers have one each, and 127.0.0.1 is every machine's. It is not the machine id in /etc: containers of one
image have the image's or none, and so have machines that were cloned. The running kernel has an id of its own that all
containers on it see, and that no two machines have.

Not here: how a registration is stored (`metadata/`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from buckram.bookie.trust.store_trust import UNSEEN, Trust
from buckram.core.backoff import REGISTRATION, Delays
from buckram.core.ledgers.service_info import SESSION_PROPERTY
from buckram.core.placement.policy import parse_location
from buckram.core.placement.topology import HOST_PROPERTY, LOCATION_PROPERTY, Location
from buckram.core.security.acl import LOGIN_PROPERTY
from buckram.errors import AlreadyRegistered, ConfigError, InvalidArgument, MetadataError, MetadataUnavailable
from buckram.runtime.process.clock import BOOT_ID
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Disk, MetadataStore, Write
from buckram.types import BookieId, BookieInfo

__all__ = ["BOOT_ID", "check_host_id", "place_properties", "running_host"]

_DIGITS = 12
"""Number of hexadecimal digits of the boot id that are kept: enough to tell a million hosts apart, yet readable."""


def running_host(boot_id: Path = BOOT_ID) -> str:
    """Return the id of the running kernel; without one the machine's name; empty if that is no usable name."""
    try:
        text = boot_id.read_text("ascii").strip().replace("-", "")
    except (OSError, UnicodeDecodeError):
        text = ""
    if re.fullmatch("[0-9a-f]{32}", text) and text.strip("0"):
        return f"boot-{text[:_DIGITS]}"
    name = socket.gethostname()
    return "" if name.partition(".")[0] in ("", "localhost") or not _is_name(name) else name


def place_properties(location: str, host_id: str) -> dict[str, str]:
    """Return the registration properties for a location and a host id; empty ones are left out. Raises ConfigError if
    one is malformed."""
    parse_location("[bookie] location", location)
    found = {LOCATION_PROPERTY: location} if location else {}
    return found | ({HOST_PROPERTY: check_host_id(host_id, location)} if host_id else {})


def check_host_id(host_id: str, location: str) -> str:
    """Return the host id. Raises ConfigError if it is no name, or if the bookie's location names another host."""
    if not _is_name(host_id):
        raise ConfigError(
            f"[bookie] host_id {host_id[:80]!r}: needs a name without spaces, slashes and =, of at most 200 characters"
        )
    named = Location.parse(location).host if location else None
    if named is not None and named != host_id:
        raise ConfigError(
            f"[bookie] host_id {host_id!r}: the location {location} says that it is {named!r}: give one of the two"
        )
    return host_id


def _is_name(text: str) -> bool:
    try:
        return len(text) <= 200 and "=" not in text and Location.parse(f"/host={text}").host == text
    except InvalidArgument:
        return False


log = logging.getLogger("buckram.bookie")

HEARTBEAT_S, HUNG_S = 1.0, 2.0
"""Interval of the heartbeat, and the delay of one from which on the process counts as hung, seconds: writers may have
gone on without it."""

WITHIN_S = 40.0
"""Time a start waits for the store, or for the session of a killed predecessor to end, seconds (Apache: 10-40 s)."""

UNREGISTER_S = 5.0


class Registration:
    """Keeps one bookie registered. `start` registers and raises what went wrong; afterwards it tries for ever.

    Ahead of each attempt the session is written down for the next process (`handover`) and `trust` is asked: a store
    that is not trusted gets no registration, and an existing one is removed, until `set_withdrawn(False)`. Nor does a
    bookie register that was replaced or removed: what the look found is checked again in the step that registers it.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        info: BookieInfo,
        rng: random.Random,
        *,
        handover: Handover | None = None,
        trust: Trust = UNSEEN,
    ) -> None:
        self._metadata, self._info, self._rng = metadata, info, rng
        self._handover, self._trust = handover, trust
        self._withdrawn = False
        self._breaks = 0
        """Number of interruptions (lost sessions, hangs, withdrawals): each gives the registration a new session."""
        self._scope = TaskScope("registration")
        self._changed = asyncio.Event()
        self._readonly = False
        self._closing = False
        self.registered = False

    async def start(self, *, readonly: bool) -> None:
        """Register. Raises MetadataError if that did not succeed within WITHIN_S."""
        self._readonly = readonly
        self._metadata.on_session_lost(self._session_lost)
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + WITHIN_S
        delays = Delays(REGISTRATION, self._rng)
        while True:
            try:
                await self._register()
                break
            except AlreadyRegistered as error:
                if loop.time() + delays.next_s > deadline:
                    raise AlreadyRegistered(error.bookie_id, round(loop.time() - began)) from None
            except MetadataError:
                if loop.time() + delays.next_s > deadline:
                    raise
            await asyncio.sleep(delays.take())
        if not self._closing:  # closed meanwhile: the store failed while this was registering
            self._scope.keep(self._follow, "registration", wake=self._changed.set)
            self._scope.keep(self._notice_hangs, "heartbeat")

    def set_readonly(self, readonly: bool) -> None:
        """Show the bookie as read-only or writable; takes effect in the background."""
        if readonly != self._readonly:
            self._readonly = readonly
            self._changed.set()

    def set_withdrawn(self, withdrawn: bool) -> None:
        """Remove the registration, or register again; takes effect in the background."""
        if withdrawn != self._withdrawn:
            self._withdrawn = withdrawn
            self._changed.set()

    async def close(self, *, unregister: bool) -> None:
        """Stop; with `unregister` the registration is removed at once instead of with the session."""
        self._closing = True
        await self._scope.close()
        if unregister and self.registered:
            self.registered = False
            try:
                async with asyncio.timeout(UNREGISTER_S):
                    await self._metadata.unregister(self._info.bookie_id)
            except (MetadataError, TimeoutError) as error:
                why = str(error) or f"the metadata store did not answer within {UNREGISTER_S:g} s"
                log.warning(
                    "bookie %s: it could not be unregistered, so its registration ends with its session: %s",
                    self._info.bookie_id,
                    why,
                )

    def _session_lost(self) -> None:
        self.registered = False
        self._breaks += 1
        if not self._closing:
            self._changed.set()

    async def _register(self) -> None:
        readonly = self._readonly
        self._changed.clear()
        if not self._withdrawn and not await self._trust.confirm():
            self._withdrawn = True
        if self._withdrawn:
            await self._metadata.unregister(self._info.bookie_id)
            self.registered = False
            self._breaks += 1
            return
        if self._handover is not None:
            self._handover.remember()
        await self._metadata.register(self._told(), readonly=readonly, when=self._trust.unchanged())
        if readonly == self._readonly and not self._changed.is_set():
            self.registered = True

    def _told(self) -> BookieInfo:
        """Return the properties to register: the session gets another number after each interruption."""
        started = self._info.properties.get(SESSION_PROPERTY)
        if started is None:
            return self._info
        return replace(self._info, properties={**self._info.properties, SESSION_PROPERTY: f"{started}.{self._breaks}"})

    async def _notice_hangs(self) -> None:
        """Tell, by another session, that this process hung: autorecovery looks what it lacks since."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(HEARTBEAT_S)
            late_s = loop.time() - before - HEARTBEAT_S
            if late_s > HUNG_S:
                log.warning(
                    "bookie %s hung for %.1f s: it may lack what was written then", self._info.bookie_id, late_s
                )
                self._breaks += 1
                self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            delays = Delays(REGISTRATION, self._rng)
            while not self._closing:
                try:
                    await self._register()
                    how = "withdrawn" if self._withdrawn else f"registered, read-only: {self._readonly}"
                    log.info("bookie %s: %s", self._info.bookie_id, how)
                    break
                except MetadataError as error:
                    level = logging.INFO if isinstance(error, MetadataUnavailable) else logging.WARNING
                    log.log(level, "bookie %s: not registered, trying again: %s", self._info.bookie_id, error)
                await asyncio.sleep(delays.take())


# -- taking over from a killed process ------------------------------------------------------------------------

SESSION_FILE = "SESSION"

_SIZE = 512


class Handover:
    """One directory and the session of the process that holds its lock."""

    def __init__(self, disk: Disk, metadata: MetadataStore) -> None:
        self._disk, self._metadata = disk, metadata
        self._written = ""

    async def end_previous(self) -> None:
        """End the session of the process before. After an error the registration waits until that session expires."""
        identity = self._disk.identity()
        try:
            left, _, rest = self._read().partition("\n")
        except OSError as error:
            log.warning("the session of the process before is waited for, %s cannot be read: %s", SESSION_FILE, error)
            return
        if not identity or not left:
            return
        ticket, newline, _ = rest.partition("\n")
        if left != identity or not newline or not ticket or ticket == self._metadata.session_ticket():
            return
        try:
            await self._metadata.end_session(ticket)
        except (InvalidArgument, MetadataError) as error:
            log.info("the session of the previous process cannot be ended, so its end is awaited: %s", error)

    def _read(self) -> str:
        if SESSION_FILE not in self._disk.names():
            return ""
        file = self._disk.open(SESSION_FILE)
        try:
            return file.read(0, _SIZE).decode("ascii", "replace")
        finally:
            file.close()

    def remember(self) -> None:
        """Write down the present session for the next process; call it before the session registers anything.

        The file is not synced, because after a reboot it is not needed. Errors are only logged.
        """
        ticket, identity = self._metadata.session_ticket(), self._disk.identity()
        if not ticket or not identity or ticket == self._written:
            return
        record = f"{identity}\n{ticket}\n".encode("ascii").ljust(_SIZE, b"\n")
        if len(record) > _SIZE:
            return
        try:
            file = self._disk.open(SESSION_FILE, create=SESSION_FILE not in self._disk.names())
            try:
                self._disk.write_now([Write(file, 0, [record])], sync=False)
            finally:
                file.close()
        except OSError as error:
            log.info(
                "%s cannot be written, so a restart after a kill waits for the session's end: %s", SESSION_FILE, error
            )
            return
        self._written = ticket


# -- bookies with and without logins in one cluster -----------------------------------------------------------


def check_others(own: BookieId, properties: Mapping[str, str], others: Iterable[BookieInfo]) -> None:
    """Raise ConfigError if another registered bookie asks for logins and this one does not, or the other way round."""
    asks = LOGIN_PROPERTY in properties
    different = [one.bookie_id for one in others if one.bookie_id != own and (LOGIN_PROPERTY in one.properties) != asks]
    if not different:
        return
    names = ", ".join(sorted(different)[:3]) + (f" and {len(different) - 3} more" if len(different) > 3 else "")
    mine = "asks for a login" if asks else "asks for no login"
    raise ConfigError(
        f"bookie {own} {mine} ([auth] logins), unlike {names}: a client that one of them refuses could read the same "
        "entries from another. Give all bookies of a cluster the same logins; while that is being rolled out, "
        "one bookie after "
        "the other, set [auth] mixed = 'allowed' on each"
    )
