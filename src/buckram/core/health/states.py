"""Kinds of states of health: each has one name, one severity, one cure and one section of the runbook. Pure."""

from __future__ import annotations

import enum
import re
import string
from dataclasses import dataclass

RUNBOOK = "docs/howto/runbooks/states.md"
"""Page with a section for each state, headed by its name."""
REMOVING = ("forget", "decommission", "collect", "salvage", "delete", "force", "nuke", "fix")
"""Words of commands that remove data, or declare data lost that may not be. Only a `State.last_resort` has them."""


class Severity(enum.StrEnum):
    """Severity of a state. With an ERROR the cluster is unhealthy, and `status` and `doctor` end with exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class State:
    """One kind of trouble. `cure` and `last_resort` have placeholders, `{name}`, that a finding fills in."""

    name: str
    """Name in kebab-case, the same in every interface."""
    severity: Severity
    title: str
    """Description for people, as a clause that follows the place: "bookie-1 is down"."""
    cure: str
    """Advice that loses no data."""
    last_resort: str = ""
    """Advice that removes data, or declares it lost; empty: there is none. It is given only about a process that does
    not answer, and never while a restore of the metadata is not accepted."""
    lasting: str = ""
    """Time that it has to last before its alert fires, in Prometheus' units; empty: the default of its severity."""

    def __post_init__(self) -> None:
        """Raise ValueError for a cure that removes data, which belongs in `last_resort`."""
        if removes(self.cure):
            raise ValueError(f"state {self.name}: its cure removes data; say so as the last resort")

    @property
    def runbook(self) -> str:
        """Return the address of its section in the runbook."""
        return f"{RUNBOOK}#{self.name}"

    @property
    def fields(self) -> frozenset[str]:
        """Return the names of the placeholders in the cure and the last resort."""
        text = self.cure + self.last_resort
        return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name)


def removes(text: str) -> bool:
    """Return whether advice has a word of REMOVING in it."""
    return any(word in REMOVING for word in re.findall(r"\w+", text))
