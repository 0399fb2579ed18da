"""Planted bugs of the gate that holds a tenant's changes to its grants."""

from __future__ import annotations

from typing import Any

from buckram.bookie.service.metadata.change_gate import ChangeGate
from buckram.core.security.namespace_rules import NamespaceRules
from simulator.streams.mutants.base import Mutant, plant


async def _unchecked(*args: Any) -> None:
    return None


def _allowed(*args: Any) -> str:
    return ""


MUTANTS = (
    Mutant(
        "uid-freed-under-a-head",
        "25",
        "the key that says that a uid is taken goes while the stream is there",
        plant((ChangeGate, "_check_data", _unchecked)),
        lives=lambda plan: plan.hostile,
    ),
    Mutant(
        "head-names-anything",
        "20",
        "the head of a tenant names ledgers of others",
        plant((ChangeGate, "_check_names", _unchecked)),
        lives=lambda plan: plan.hostile,
    ),
    Mutant(
        "record-of-anybody",
        "20",
        "a tenant deletes the record of another's ledger",
        plant((NamespaceRules, "_of_ledger", _allowed)),
        lives=lambda plan: plan.hostile,
    ),
    Mutant(
        "links-by-anybody",
        "25",
        "a tenant makes namespaces and links of replication",
        plant((NamespaceRules, "_of_record", _allowed)),
        lives=lambda plan: plan.hostile,
    ),
)
