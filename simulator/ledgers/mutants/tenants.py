"""Planted bugs of authorisation and quotas: clients get in without permission, or a full namespace loses entries."""

from __future__ import annotations

from simulator.engine.edits import edited
from simulator.engine.plan import Plan
from simulator.ledgers.mutants.base import Mutant


def _has_stranger(plan: Plan) -> bool:
    return bool(plan.tenants) and plan.entries > 0


def _fills_up(plan: Plan) -> bool:
    return plan.quotas.get("stored_bytes") == 3000 and plan.entries >= 5 and not plan.explicit


MUTANTS = (
    Mutant(
        "looked-up-is-allowed",
        "A8",
        "A request that waited for the look at its ledger's namespace passes, whatever was granted.",
        edited(
            (
                "buckram.bookie.service.security.entry_access:ConnectionAccess.item",
                "elif rights & permission:",
                "elif rights & permission or looked == ledger_id:",
            )
        ),
        lives=_has_stranger,
        seeds=40,
    ),
    Mutant(
        "readers-fence",
        "A8",
        "Whoever may read a ledger may fence it.",
        edited(("buckram.bookie.service.security.entry_access:_needed", "_FENCING if fences else needed", "needed")),
        lives=lambda plan: plan.tenants == "read" and plan.entries > 0,
        seeds=100,
    ),
    Mutant(
        "refused-is-acknowledged",
        "Q1, S1",
        "An add for which there is no room is answered with OK.",
        edited(
            (
                "buckram.bookie.service.rate_limiter:RateLimiter._refuse",
                "code = Code.QUOTA_EXCEEDED if knows else Code.UNAUTHORIZED",
                "code = Code.OK",
            )
        ),
        lives=_fills_up,
        seeds=100,
    ),
)


__all__ = ["MUTANTS"]
