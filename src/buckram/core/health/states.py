"""What a state of health consists of: one name, one severity, one cure, one section of the runbook. Pure."""

from __future__ import annotations

import enum
import re
import string
from dataclasses import dataclass

RUNBOOK = "docs/howto/runbooks/states.md"
"""The page that has a section for each state, under its name."""
REMOVING = ("forget", "decommission", "collect", "salvage", "delete", "force", "nuke", "fix")
"""Words of commands that remove data, or take for lost what may not be. Only a `State.last_resort` has them."""


class Severity(enum.StrEnum):
    """How bad a state is. With an ERROR the cluster is unhealthy, and `status` and `doctor` end with exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class State:
    """One kind of thing that can be wrong. `cure` and `last_resort` have `{names}` that a finding fills in."""

    name: str
    """In kebab-case; the same at every door."""
    severity: Severity
    title: str
    """What it is, for people, as a clause that follows the place: "bookie-1 is down"."""
    cure: str
    """What to do, without a loss."""
    last_resort: str = ""
    """What removes data, or declares it to be lost. It is advised only about what does not answer, and never while a
    restore of the metadata is not accepted."""
    lasting: str = ""
    """How long it has to last before its alert fires, in Prometheus' units; empty: what its severity says."""

    def __post_init__(self) -> None:
        """ValueError for a cure that removes data: that is what last resorts are for."""
        if removes(self.cure):
            raise ValueError(f"state {self.name}: its cure removes data; say so as the last resort")

    @property
    def runbook(self) -> str:
        """The address of its section."""
        return f"{RUNBOOK}#{self.name}"

    @property
    def fields(self) -> frozenset[str]:
        """The names of the values that the cure and the last resort need."""
        text = self.cure + self.last_resort
        return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name)


def removes(text: str) -> bool:
    """Whether an advice names something that removes data."""
    return any(word in REMOVING for word in re.findall(r"\w+", text))


__all__ = ["REMOVING", "RUNBOOK", "Severity", "State", "removes"]
