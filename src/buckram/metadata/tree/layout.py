"""The places of things in the tree of keys: Apache's root, and Buckram's own keys beside it.

Pure. Apache's tools refuse to work on a root that holds foreign keys, so ours are never under `root`. The trees that
Apache's ledger managers make are zookeeper/paths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from buckram.errors import InvalidArgument
from buckram.types import MAX_LEDGER_ID, BookieId, LedgerId

_DIGITS = 19
WITNESSES, SUSPECTS, BRAKES, COLLECT = "witness", "suspects", "brakes", "collect"
"""Folders below ClusterLayout.own: bookies' statements that prove a store's past, bookies that found that it went back,
bookies whose collection waits; and the key that lets collection go on.
"""
WISHES, COLLECTED = "wishes", "collected"
"""Folders below ClusterLayout.own: operators' requests to single bookies, and results of requested collections."""
SECURITY = "security"
"""Folder below ClusterLayout.own: keys that sign tokens, tokens, revocations and grants (metadata/records/security)."""
TENANTS = "tenants"
"""Folder below ClusterLayout.own: quotas of namespaces, and their use as bookies report it
(metadata/records/tenants).
"""
TIMES, ACCEPTED_TIME = "times", "accepted-time"
"""Keys below ClusterLayout.own: the time that each bookie recorded last, and the time that an operator accepted
(metadata/records/recorded_time).
"""
GATEWAYS = "gateways"
"""Folder below ClusterLayout.own: the addresses of gateways, in ephemeral keys
(serve/gateway/shared/gateway_registry).
"""
DATABASE_SERVERS = "database-servers"
"""Folder below ClusterLayout.own: the addresses of servers of databases, in ephemeral keys (serve/hrana/forwarding)."""

HEALTH = "health"
"""Key below ClusterLayout.own that is written to see whether the store takes changes (health/gathering)."""


@dataclass(frozen=True, slots=True)
class ClusterLayout(ABC):
    """The keys that every cluster has in the same places. Subclasses define where ledgers are."""

    root: str = "/ledgers"
    own: str = "/buckram"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    def cookie(self, bookie_id: BookieId) -> str:
        return f"{self.cookies}/{bookie_id}"

    def registrations(self, *, readonly: bool) -> str:
        return f"{self.root}/available/readonly" if readonly else f"{self.root}/available"

    def registration(self, bookie_id: BookieId, *, readonly: bool) -> str:
        return f"{self.registrations(readonly=readonly)}/{bookie_id}"

    @property
    def required_identity(self) -> str:
        """Key that exists while clients must refuse bookies that do not identify themselves."""
        return f"{self.own}/require-identity"

    @property
    def history(self) -> str:
        return f"{self.own}/history"

    @abstractmethod
    def ledger(self, ledger_id: LedgerId) -> str:
        """Return the key of a ledger's record. Raises InvalidArgument for an id that cannot be kept."""

    @abstractmethod
    def ledger_of(self, key: str) -> LedgerId | None:
        """Return the ledger whose record `key` is; None for any other key."""


@dataclass(frozen=True, slots=True)
class Layout(ClusterLayout):
    """All ledgers in one folder: a ledger's name is its id with leading zeros, so that names sort as ids do."""

    @property
    def ledgers(self) -> str:
        return f"{self.root}/all"

    @property
    def next_ledger_id(self) -> str:
        return f"{self.own}/next-ledger-id"

    def ledger(self, ledger_id: LedgerId) -> str:
        return f"{self.ledgers}/{self.ledger_name(ledger_id)}"

    def ledger_of(self, key: str) -> LedgerId | None:
        folder, _, name = key.rpartition("/")
        return self.ledger_id(name) if len(name) == _DIGITS and folder == self.ledgers else None

    def ledger_name(self, ledger_id: LedgerId) -> str:
        if not 0 <= ledger_id <= MAX_LEDGER_ID:
            raise InvalidArgument(f"ledger id {ledger_id}: must be between 0 and {MAX_LEDGER_ID}")
        return f"{ledger_id:0{_DIGITS}d}"

    def ledger_id(self, name: str) -> LedgerId | None:
        """Return the id in a child's name; None for a name that is not a ledger's."""
        if len(name) != _DIGITS or not (name.isascii() and name.isdigit()):
            return None
        return int(name)
