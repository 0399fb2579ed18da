"""Problems of a cluster, as `buckram status` and `buckram doctor` print them, and whether releases fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from buckram.types import BookieId


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a cluster: its kind, its place, the reason, and what to do."""

    what: str
    where: str
    why: str
    do: str

    def as_json(self) -> dict[str, str]:
        return {"what": self.what, "where": self.where, "why": self.why, "do": self.do}


# -- releases -------------------------------------------------------------------------------------------------

RELEASES = ("0.1", "0.2")
"""All releases, the oldest first. Each works with the one before, and reads what it has written."""


def release_problems(bookies: Mapping[BookieId, str], own: str = RELEASES[-1]) -> list[Problem]:
    """Return a problem for each bookie whose release this program cannot upgrade or does not know. `bookies`: the
    version that each reports; empty for one that is not Buckram's. `own`: this program's.
    """
    here = RELEASES.index(series(own))
    found = []
    for bookie, version in sorted(bookies.items()):
        if not version:
            continue
        if series(version) not in RELEASES:
            why = f"it runs {version[:40]}, which this program ({own}) does not know"
            found.append(Problem("release", bookie, why, "use the `buckram upgrade-check` of the newest release"))
        elif RELEASES.index(series(version)) > here:
            why = f"it runs {version}, newer than this program ({own})"
            found.append(Problem("release", bookie, why, "use the `buckram upgrade-check` of the newest release"))
        elif RELEASES.index(series(version)) < here - 1:
            then = RELEASES[RELEASES.index(series(version)) + 1]
            why = f"it runs {version}, more than one release behind {own}"
            found.append(Problem("release", bookie, why, f"upgrade the whole cluster to {then} first"))
    return found


def series(version: str) -> str:
    """Return the series of a version, 0.2 of 0.2.0, 0.2.1.dev3 and the like; empty for what is no version."""
    found = re.match(r"(\d{1,6}\.\d{1,6})(?:\D|$)", version)
    return found[1] if found is not None else ""
