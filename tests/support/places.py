"""Whether an ensemble meets a placement rule, decided without the code under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buckram.types import BookieId

DEPTH = {"region": 1, "zone": 2, "rack": 3}


def domain(path: str, level: str) -> str:
    """The domains of a path /region/zone/rack or /rack; an empty path has none."""
    parts = path.split("/")[1:]
    return path if len(parts) == 1 else "/".join(parts[: DEPTH[level]])


def spans(
    ensemble: Sequence[BookieId], paths: Mapping[BookieId, str], write_quorum: int, least: int, level: str = "rack"
) -> bool:
    """Whether every window of the ensemble spans min(Qw, least) domains (M6); unknown places count as none."""
    where = [domain(paths.get(member, ""), level) for member in ensemble]
    size = len(where)
    windows = [{where[(start + offset) % size] for offset in range(write_quorum)} - {""} for start in range(size)]
    return all(len(window) >= max(1, min(write_quorum, least)) for window in windows) or least <= 1
