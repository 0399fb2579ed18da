"""The list that answers "is the cluster well?" in every interface, made from the facts. Pure.

The rule of advice is here: a command that removes data is advised neither about a process that answers, nor while a
restore of the metadata is not accepted or a bookie does not believe the metadata store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from buckram.core.health.bookie_states import of_bookies, of_collection
from buckram.core.health.cluster_states import named, of_healing, of_metadata, of_streams
from buckram.core.health.facts import Facts, Noted
from buckram.core.health.state_table import TABLE
from buckram.core.health.states import Severity, State
from buckram.types import BookieId

_ORDER = {severity: number for number, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is in a state: the place, the reason, and the cure with its values filled in."""

    state: State
    where: str
    why: str
    do: str

    def as_json(self) -> dict[str, str]:
        return {
            "what": self.state.name,
            "where": self.where,
            "why": self.why,
            "do": self.do,
            "severity": self.state.severity.value,
            "runbook": self.state.runbook,
        }


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings that the facts show, each once, the worst first."""
    noted: list[Noted] = [*of_metadata(facts), *of_bookies(facts), *of_collection(facts)]
    noted += [*of_healing(facts), *of_streams(facts)]
    noted += [Noted("not-asked", what, why) for what, why in facts.not_asked]
    found = dict.fromkeys(finding_of(facts, one) for one in (*noted, *facts.noted))
    return tuple(sorted(found, key=lambda one: _ORDER[one.state.severity]))


def finding_of(facts: Facts, noted: Noted) -> Finding:
    """Return the finding for one thing that is in a state."""
    state = TABLE[noted.state]
    return Finding(state, noted.where, noted.why or state.title, advice(facts, noted))


def advice(facts: Facts, noted: Noted) -> str:
    """Return the cure of a state, followed by its last resort if the rule of advice allows that."""
    state = TABLE[noted.state]
    values = {"where": noted.where, "uri": facts.uri, "bookie": noted.bookie or noted.where, **noted.values}
    text = state.cure.format_map(values)
    if state.last_resort and may_remove(facts, noted):
        text += f"; {state.last_resort.format_map(values)}"
    return text


def may_remove(facts: Facts, noted: Noted) -> bool:
    """Return whether advice about it may name a command that removes data, by the rule of advice."""
    if facts.accepted is not True or facts.suspects:
        return False
    named = {noted.where, noted.values.get("bookie", "")} & {one.id for one in facts.bookies}
    return not any(facts.answers(one) for one in (*sorted(named), *filter(None, [noted.bookie])))


def why_kept(facts: Facts, bookie: BookieId) -> str:
    """Return why an unregistered bookie may not be removed now, by the rule of advice; "" if it may.

    Commands, the gateway and its console call this before they begin (`health/removal_gate.py`).
    """
    if may_remove(facts, Noted("bookie-down", bookie, "", bookie=bookie)):
        return ""
    if facts.moved:
        return f"bookie {bookie} is kept: {facts.moved}"
    if facts.accepted is not True:
        return (
            f"bookie {bookie} is kept: the metadata at {facts.uri} were restored, and no operator has accepted "
            "them yet: `buckram cluster accept-restore` comes first"
        )
    answering = next((one for one in facts.bookies if one.id == bookie and one.answers), None)
    if answering is not None:
        return (
            f"bookie {bookie} is kept: it answers at {answering.address} and is not registered; see its log, and stop "
            "it before it is taken out"
        )
    doubting = named([one.bookie for one in facts.suspects])
    return (
        f"bookie {bookie} is kept: the metadata store is not believed by {doubting}; `buckram cluster check` "
        "says what to do first"
    )


def healthy(found: Iterable[Finding]) -> bool:
    """Return whether no finding is an error."""
    return not any(one.state.severity is Severity.ERROR for one in found)


def summary(found: Sequence[Finding]) -> str:
    """Return the number of findings of each severity in words, "2 errors, 1 note"; "" if there are none."""
    counts = {severity: sum(one.state.severity is severity for one in found) for severity in Severity}
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    return ", ".join(f"{count} {names[one]}{'' if count == 1 else 's'}" for one, count in counts.items() if count)
