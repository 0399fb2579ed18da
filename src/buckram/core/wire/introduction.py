"""Introductions: the identity that a bookie claims and the one that a client expects, exchanged first on a connection.

Names, addresses and ports are reused; these identities are not. A peer with another identity than expected gets no
replies and its replies are ignored (docs/reference/protocol.md, identity).

Not here: the packets (`core/wire/v3.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.types import BookieAddress, BookieId, BookieInfo, LedgerId

IDENTITY_PROPERTY = "buckram.identity"
"""Property of a registration that, with the value IDENTITY, promises that the bookie answers introductions."""
IDENTITY = "1"
INCARNATION_PROPERTY = "buckram.incarnation"
NAMES_LEDGERS = 1
"""Feature: the bookie understands the packet that names a ledger's birth."""
SUSPECT = 2
"""State rather than a feature: the bookie concludes that the metadata store went back, and serves only reads."""
METADATA = 4
"""Feature: the bookie serves its metadata store (metadata/service/packets)."""
TRACES = 8
"""Feature: the bookie traces adds that a packet marks as traced (OpenTelemetry)."""
PULLS = 16
"""Feature: on request, the bookie copies entries from the files of its neighbours (core/wire/pulls)."""
JUDGES_TIME = 32
"""Feature: the time in the identity is the one that the bookie believes, and not just its clock's."""
DOUBTS_TIME = 64
"""State rather than a feature: the bookie is not certain of the time in its identity."""
GUESSES_TIME = 128
"""State rather than a feature: the bookie began in doubt, so its time does not continue one that it was certain of."""
LACS = 256
"""Feature: the bookie takes explicit LACs as packets on the v2 wire (core/wire/lacs)."""
KNOWS_QUOTAS = 1
"""Feature of clients: they know the code QUOTA_EXCEEDED, and that adds may wait where a namespace has a rate."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that a bookie claims."""

    cluster: str
    """The cluster's instance id."""
    bookie_id: BookieId
    incarnation: str
    epoch: int = 0
    """The highest metadata epoch that it has seen; 0 for none."""
    wall_us: int = 0
    """Its wall clock, microseconds since 1970."""
    features: int = 0
    highest_ledger: LedgerId = -1
    """The highest ledger id that it has a state of; -1 if it holds nothing."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """A client's introduction: its cluster, the bookie and incarnation ("" for any) that it expects, and the highest
    metadata epoch that it knows of.
    """

    cluster: str
    bookie_id: BookieId
    incarnation: str = ""
    epoch: int = 0
    features: int = 0
    """Features of the client beyond Apache's protocol, as bits."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The introduction for a bookie, and whether it has to answer with its identity. Small and picklable."""

    introduction: Introduction
    must_answer: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a bookie is, and which one to expect there (None: any)."""

    address: BookieAddress
    expected: Expected | None = None

    def __str__(self) -> str:
        return str(self.address)


def answers_introductions(info: BookieInfo) -> bool:
    """Return whether the registration promises that the bookie answers introductions with its identity."""
    return info.properties.get(IDENTITY_PROPERTY) == IDENTITY


def identity_properties(info: BookieInfo | None) -> dict[str, str]:
    """Return the properties of a registration that concern the bookie's identity."""
    named = (INCARNATION_PROPERTY, IDENTITY_PROPERTY)
    return {} if info is None else {name: info.properties[name] for name in named if name in info.properties}


def expected_of(cluster: str, info: BookieInfo, *, required: bool = False, epoch: int = 0) -> Expected:
    """Return what to expect by the registration. `required`: an identity is required, whatever that promises."""
    said = Introduction(cluster, info.bookie_id, info.incarnation or "", epoch, KNOWS_QUOTAS)
    return Expected(said, required or answers_introductions(info))


def refusal(expected: Expected, found: Identity | None) -> str:
    """Return why the client must not use a bookie with the identity `found` (None: it sent none); "" if it may."""
    if found is None:
        return "it does not say who it is" if expected.must_answer else ""
    return identity_mismatch(expected.introduction, found)


def identity_mismatch(expected: Introduction, found: Identity) -> str:
    """Return, as a text for people, why `found` is not the bookie that the client expects; "" if it is."""
    if found.cluster != expected.cluster:
        return f"it belongs to cluster {found.cluster}, not to {expected.cluster}"
    if found.bookie_id != expected.bookie_id:
        return f"it is bookie {found.bookie_id}"
    if expected.incarnation and found.incarnation != expected.incarnation:
        return f"it is incarnation {found.incarnation}, not {expected.incarnation}: its earlier data is gone"
    return ""
