"""Introductions: the identity that a bookie claims and the one that a client expects, exchanged first on a connection.

Names, addresses and ports are reused; these identities are not. A peer with another identity than expected gets no
replies and its replies are ignored (docs/reference/protocol.md, identity).

Not here: the packets (`core/wire/v3.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.types import BookieAddress, BookieId, BookieInfo

IDENTITY_PROPERTY = "buckram.identity"
"""A bookie whose registration has this property with the value IDENTITY answers an introduction with who it is."""
IDENTITY = "1"
INCARNATION_PROPERTY = "buckram.incarnation"
NAMES_LEDGERS = 1
"""A feature: it understands the packet that names a ledger's birth."""
SUSPECT = 2
"""Not a feature but a state: the metadata store went back as it sees it, and it serves nothing but reads."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a bookie says of itself."""

    cluster: str
    """The cluster's instance id."""
    bookie_id: BookieId
    incarnation: str
    epoch: int = 0
    """The highest metadata epoch that it has seen; 0: it knows of none."""
    wall_us: int = 0
    """Its wall clock, microseconds since 1970."""
    features: int = 0
    highest_ledger: int = -1
    """The highest ledger id that it holds anything of; -1: it holds nothing."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a client says: the cluster it belongs to, whom it expects ("" as incarnation: any), and the highest metadata
    epoch that it knows of."""

    cluster: str
    bookie_id: BookieId
    incarnation: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """What to say to a bookie, and whether it has to say who it is. Small, and can be sent to other processes."""

    introduction: Introduction
    must_answer: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a bookie is, and whom to expect there (None: whoever it is)."""

    address: BookieAddress
    expected: Expected | None = None

    def __str__(self) -> str:
        return str(self.address)


def says_who_it_is(info: BookieInfo) -> bool:
    """Whether a registration says that its bookie answers introductions."""
    return info.properties.get(IDENTITY_PROPERTY) == IDENTITY


def telling(info: BookieInfo | None) -> dict[str, str]:
    """Those properties of a registration by which its bookie is known."""
    named = (INCARNATION_PROPERTY, IDENTITY_PROPERTY)
    return {} if info is None else {name: info.properties[name] for name in named if name in info.properties}


def expected_of(cluster: str, info: BookieInfo, *, required: bool = False, epoch: int = 0) -> Expected:
    """By its registration. `required`: it has to say who it is, whatever the registration says."""
    said = Introduction(cluster, info.bookie_id, info.incarnation or "", epoch)
    return Expected(said, required or says_who_it_is(info))


def objection(expected: Expected, found: Identity | None) -> str:
    """Why the client must not use a bookie that identified itself so (None: not at all); "" if it may."""
    if found is None:
        return "it does not say who it is" if expected.must_answer else ""
    return identity_mismatch(expected.introduction, found)


def identity_mismatch(expected: Introduction, found: Identity) -> str:
    """Why `found` is not the bookie that the client expects, as a text for people; "" if it is."""
    if found.cluster != expected.cluster:
        return f"it belongs to cluster {found.cluster}, not to {expected.cluster}"
    if found.bookie_id != expected.bookie_id:
        return f"it is bookie {found.bookie_id}"
    if expected.incarnation and found.incarnation != expected.incarnation:
        return f"it is incarnation {found.incarnation}, not {expected.incarnation}: its earlier data is gone"
    return ""
