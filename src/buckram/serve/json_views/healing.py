"""Ledgers that lack copies, who copies them, and why others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buckram.healing.overview import Overview


def healing_json(found: Overview) -> dict[str, Any]:
    """Return the JSON of autorecovery."""
    return {
        "enabled": found.enabled,
        "auditor": found.auditor or None,
        "delay_s": found.delay_s,
        "brake": None if found.brake is None else {"bookies": list(found.brake.bookies), "why": found.brake.why},
        "workers": [{"worker": one.worker, "bytes_per_s": one.bytes_per_s} for one in found.workers],
        "queue": [
            {
                "ledger": one.ledger,
                "state": one.state,
                "why": one.why,
                "eta_s": one.eta_s,
                "lost": [list(row) for row in one.lost],
                "age_s": one.age_s,
            }
            for one in found.queue
        ],
        "oldest_mark_s": found.oldest.age_s if found.oldest else None,
        "checks": {check: dict(result) for check, result in found.checks.items()},
    }
