"""One thing that is wrong with a cluster, as `buckram status` and `buckram doctor` print it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a cluster: its kind, its place, the reason, and what to do."""

    what: str
    where: str
    why: str
    do: str

    def as_json(self) -> dict[str, str]:
        return {"what": self.what, "where": self.where, "why": self.why, "do": self.do}
