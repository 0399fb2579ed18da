"""A batch that is one transaction, as clients of libSQL write it, recognised so that it can be executed as one group.

`client.batch([...])` becomes BEGIN, the statements, each on condition that the one before succeeded, COMMIT on the same
condition, and ROLLBACK if COMMIT did not succeed. Executed step by step this would be an interactive transaction, which
has the database for itself; as a group it shares its append with those of other clients.
"""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.db.sql_text import ClassifiedStatement, Kind
from buckram.serve.hrana.protocol.requests import Condition, Step


def fusible(steps: Sequence[Step], statements: Sequence[ClassifiedStatement]) -> bool:
    """Return whether the steps are one transaction whose statements run all or none. `statements` are those of the
    steps.
    """
    if len(steps) < 4 or statements[0].kind is not Kind.BEGIN or statements[0].mode == "readonly":
        return False
    commit, rollback = len(steps) - 2, len(steps) - 1
    return (
        steps[0].condition is None
        and statements[commit].kind is Kind.COMMIT
        and statements[rollback].kind is Kind.ROLLBACK
        and all(one.kind is Kind.OTHER for one in statements[1:commit])
        and all(_after(steps[at].condition, at - 1) for at in range(1, commit + 1))
        and _unless(steps[rollback].condition, commit)
    )


def _after(condition: Condition | None, step: int) -> bool:
    """Return whether a condition is "the step succeeded", possibly with "and the transaction is open"."""
    if condition is None:
        return False
    if condition.kind == "and":
        return any(_after(part, step) for part in condition.parts) and all(
            _after(part, step) or _inside(part) for part in condition.parts
        )
    return condition.kind == "ok" and condition.step == step


def _inside(condition: Condition) -> bool:
    return condition.kind == "not" and condition.parts[0].kind == "is_autocommit"


def _unless(condition: Condition | None, step: int) -> bool:
    return condition is not None and condition.kind == "not" and _after(condition.parts[0], step)


__all__ = ["fusible"]
