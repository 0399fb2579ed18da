"""Places of bookies: locations of named levels, labels, the two forms in which they are written, and distances.

A path names the levels from the widest to the narrowest: `/rack`, `/region/rack`, `/region/zone/rack` or
`/region/zone/rack/host`; `/zone=a/rack=r1` names them itself. The map in metadata has the JSON form of Apache Pulsar's
rack mapping, `{group: {bookie: {"rack": path, "hostname": host}}}`; a group other than `default` is a label. By the
distance of a bookie from a reader, reads go to near bookies first.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from buckram.addresses import is_loopback
from buckram.core.ledgers.service_info import valid_bookie_id
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import BookieId, BookieInfo

LEVELS = ("region", "zone", "rack", "host")
"""Levels of a location, from the widest to the narrowest."""

DEFAULT_GROUP = "default"

_UNKNOWN = ("default-region", "default-zone", "default-rack")
"""Apache's names for an unknown place."""

_BY_DEPTH: dict[int, tuple[str, ...]] = {1: ("rack",), 2: ("region", "rack"), 3: ("region", "zone", "rack"), 4: LEVELS}

_FORMS = "/rack, /region/rack, /region/zone/rack, /region/zone/rack/host, or with names such as /zone=a/rack=r1"


@dataclass(frozen=True, slots=True)
class Location:
    """The name at each level; None where it is not known."""

    region: str | None = None
    zone: str | None = None
    rack: str | None = None
    host: str | None = None

    @classmethod
    def parse(cls, path: str) -> Location:
        """Parse a path. Raises InvalidArgument, which names the path and the accepted forms."""
        parts = path.split("/")
        if len(parts) < 2 or parts[0] or not all(parts[1:]) or any(c.isspace() or not c.isprintable() for c in path):
            raise InvalidArgument(f"location {path!r}: needs a path without spaces, {_FORMS}")
        names = [part.partition("=") for part in parts[1:]]
        if any(equals for _, equals, _ in names):
            found = {level: name for level, _, name in names}
            if len(found) < len(names) or not all(found.values()) or any(level not in LEVELS for level in found):
                raise InvalidArgument(f"location {path!r}: each part needs one of the levels {', '.join(LEVELS)}")
        elif len(names) > len(LEVELS):
            raise InvalidArgument(f"location {path!r} has {len(names)} parts, at most {len(LEVELS)} are: {_FORMS}")
        else:
            found = dict(zip(_BY_DEPTH[len(names)], parts[1:], strict=True))
        return cls(**{level: None if name in _UNKNOWN else name for level, name in found.items()})

    def __str__(self) -> str:
        known = [(level, name) for level in LEVELS if (name := getattr(self, level)) is not None]
        if not known:
            return "unknown"
        if tuple(level for level, _ in known) in _BY_DEPTH.values():
            return "".join(f"/{name}" for _, name in known)
        return "".join(f"/{level}={name}" for level, name in known)

    def domain(self, level: str) -> str | None:
        """Return the fault domain at a level: its name below those of the levels above; None if it is unknown."""
        if getattr(self, level) is None:
            return None
        if level == "host":
            return self.host
        return "/" + "/".join(getattr(self, above) or "" for above in LEVELS[: LEVELS.index(level) + 1]).lstrip("/")


NOWHERE = Location()

LOCATION_PROPERTY = "buckram.location"
"""Property of a registration: the path that the bookie was configured with."""

HOST_PROPERTY = "buckram.host"
"""Property of a registration: the host that the bookie runs on. All that can only be lost together have the same."""


def registered_topology(infos: Mapping[BookieId, BookieInfo]) -> Topology:
    """Return the places that bookies registered. An invalid path is ignored.

    A bookie that registers no host (Apache's do not) has the host that its neighbours at the same address registered,
    if they agree; else that of its address, unless this is a loopback address, which each machine has: then its host is
    unknown.
    """
    said: dict[str, set[str]] = {}
    for info in infos.values():
        if info.address is not None and (host := info.properties.get(HOST_PROPERTY)):
            said.setdefault(info.address.host, set()).add(host)
    return Topology({bookie: _registered(info, said) for bookie, info in infos.items()})


def _registered(info: BookieInfo, said: Mapping[str, Collection[str]]) -> Location:
    try:
        location = Location.parse(info.properties.get(LOCATION_PROPERTY, ""))
    except InvalidArgument:
        location = NOWHERE
    if location.host:
        return location
    host = info.properties.get(HOST_PROPERTY) or None
    if host is None and info.address is not None:
        neighbours = said.get(info.address.host, ())
        if len(neighbours) == 1:
            (host,) = neighbours
        elif not is_loopback(info.address.host):
            host = info.address.host
    return replace(location, host=host)


@dataclass(frozen=True, slots=True)
class Topology:
    """Where each bookie is and which labels it has, at one moment."""

    locations: Mapping[BookieId, Location] = field(default_factory=dict)
    labels: Mapping[BookieId, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Mapping[BookieId, str], labels: Mapping[BookieId, tuple[str, ...]] | None = None) -> Topology:
        return cls({bookie: Location.parse(path) for bookie, path in paths.items()}, labels or {})

    def location(self, bookie: BookieId) -> Location:
        return self.locations.get(bookie, NOWHERE)

    def domain(self, bookie: BookieId, level: str) -> str | None:
        """Return the fault domain of a bookie at a level; None if it is unknown. If no bookie names a zone, a region
        counts as a zone: so Apache's zone-aware policy reads paths of two parts."""
        location = self.locations.get(bookie, NOWHERE)
        if level == "zone" and location.zone is None and location.region is not None and not self._names_zones():
            return location.domain("region")
        return location.domain(level)

    def knows(self, level: str) -> bool:
        """Return whether any bookie has a known place at the level."""
        return any(self.domain(bookie, level) is not None for bookie in self.locations)

    def has_several(self, level: str) -> bool:
        """Return whether bookies are in more than one known domain of the level."""
        found = (self.domain(bookie, level) for bookie in self.locations)
        first = next((domain for domain in found if domain is not None), None)
        return any(domain is not None and domain != first for domain in found)

    def labelled(self, bookie: BookieId) -> tuple[str, ...]:
        return self.labels.get(bookie, ())

    def over(self, below: Topology) -> Topology:
        """Return this topology laid over another one: labels and the path of a bookie here replace those there; its
        host and the rest of its path are taken from below separately, if only one of them is given here."""
        merged = dict(below.locations)
        for bookie, location in self.locations.items():
            under = merged.get(bookie)
            if under is not None and location.host is None:
                location = replace(location, host=under.host)
            elif under is not None and location == Location(host=location.host):
                location = replace(under, host=location.host)
            merged[bookie] = location
        return Topology(merged, {**below.labels, **self.labels})

    def _names_zones(self) -> bool:
        return any(location.zone is not None for location in self.locations.values())


@dataclass(frozen=True, slots=True)
class RackMap:
    """The map that is kept in metadata: per bookie a path, and perhaps a host and labels."""

    paths: Mapping[BookieId, str] = field(default_factory=dict)
    labels: Mapping[BookieId, tuple[str, ...]] = field(default_factory=dict)
    hosts: Mapping[BookieId, str] = field(default_factory=dict)

    def topology(self) -> Topology:
        """Return the topology of the map. Invalid paths (Apache does not check them) are left out: such a bookie has no
        known place."""
        found: dict[BookieId, Location] = {}
        for bookie, path in self.paths.items():
            try:
                location = Location.parse(path)
            except InvalidArgument:
                continue
            found[bookie] = location if location.host else replace(location, host=self.hosts.get(bookie))
        return Topology(found, self.labels)

    def placed(self, bookie: BookieId, path: str | None, labels: Collection[str] | None = None) -> RackMap:
        """Return a map with another path for one bookie, or, for None, without it; `labels` None keeps its labels.
        Raises InvalidArgument."""
        if path is not None:
            Location.parse(path)
        paths = {b: p for b, p in self.paths.items() if b != bookie} | ({} if path is None else {bookie: path})
        kept = dict(self.labels)
        if labels is not None or path is None:
            kept.pop(bookie, None)
        if labels:
            kept[bookie] = tuple(sorted(dict.fromkeys(check_label(label) for label in labels)))
        return RackMap(paths, kept, self.hosts)

    def encode(self) -> bytes:
        groups: dict[str, dict[str, dict[str, str]]] = {}
        for bookie, path in sorted(self.paths.items()):
            value = {"rack": path} | ({"hostname": self.hosts[bookie]} if bookie in self.hosts else {})
            for group in self.labels.get(bookie, ()) or (DEFAULT_GROUP,):
                groups.setdefault(group, {})[bookie] = value
        return json.dumps(groups, sort_keys=True).encode()

    @classmethod
    def decode(cls, key: str, value: bytes) -> RackMap:
        """Parse the map. Raises MalformedRecord, which names the key and what is wrong with it."""
        paths: dict[str, str] = {}
        labels: dict[str, tuple[str, ...]] = {}
        hosts: dict[str, str] = {}
        try:
            groups: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(value) if value.strip() else {}
            for group, members in groups.items():
                for bookie, place in members.items():
                    if not isinstance(place["rack"], str):
                        raise TypeError(f"the rack of {bookie} is {place['rack']!r}")
                    paths[bookie] = place["rack"]
                    if place.get("hostname"):
                        hosts[bookie] = str(place["hostname"])
                    if group != DEFAULT_GROUP:
                        labels[bookie] = (*labels.get(bookie, ()), group)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MalformedRecord(
                f"{key}: not a rack mapping ({error!r}); write it anew with `buckram placement topology load FILE`"
            ) from None
        return cls(paths, labels, hosts)


def check_label(label: str) -> str:
    if not label or label == DEFAULT_GROUP or not label.isprintable() or any(c in " ,=/" for c in label):
        raise InvalidArgument(
            f"label {label!r}: needs a word without spaces, commas, = and /, and not {DEFAULT_GROUP!r}, which is none"
        )
    return label


def parse_lines(lines: Iterable[str], name: str, known: Sequence[BookieId]) -> RackMap:
    """Parse a map from lines of `BOOKIE PATH [LABEL ...]`; # begins a comment.

    Raises InvalidArgument, which names the line and the cure.
    """
    found, seen = RackMap(), dict[BookieId, int]()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}, line {number}"
        if len(words) < 2 or not valid_bookie_id(words[0]):
            raise InvalidArgument(f"{where}: {line.strip()!r} is not BOOKIE PATH, for example: 10.0.0.1:3181 /rack1")
        bookie, path, *labels = words
        if bookie not in known:
            there = ", ".join(known) or "none"
            raise InvalidArgument(
                f"{where}: bookie {bookie} is not known (known: {there}): correct its name, or start it once so that "
                "it has a cookie"
            )
        if bookie in seen:
            raise InvalidArgument(f"{where}: bookie {bookie} is in line {seen[bookie]} already: keep one of the two")
        seen[bookie] = number
        try:
            found = found.placed(bookie, path, labels)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error}") from None
    return found


# -- distance from a reader -----------------------------------------------------------------------------------


def distance(here: Location, bookie: BookieId, topology: Topology) -> int:
    """Return 0 for the same host, 1 for the same rack, and so on; an unknown place is as far as another region."""
    there = topology.location(bookie)
    for far, level in enumerate(reversed(LEVELS)):
        domain = here.domain(level)
        if domain is not None and domain == there.domain(level):
            return far
    return len(LEVELS)


def by_distance(members: Sequence[BookieId], here: Location, topology: Topology) -> Sequence[BookieId]:
    """Return the members, near ones first; those that are equally far keep their order."""
    return sorted(members, key=lambda bookie: distance(here, bookie, topology))
