"""An error, and nothing else, makes the cluster unhealthy and `status`, `doctor` and `cluster check` end with 1.

Over the whole table, without a cluster. That each command ends by this word alone is seen at all doors
(`tests/health/kit.py:by_command`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from buckram.core.health.facts import Facts, Noted
from buckram.core.health.findings import finding_of, findings, healthy
from buckram.core.health.state_table import TABLE
from buckram.core.health.states import RUNBOOK, Severity
from buckram.health.gathering import Health
from buckram.serve.json_views.status import problems_json, status_json

ROOT = Path(__file__).parents[2]
VALUES = {field: "x" for state in TABLE.values() for field in state.fields}
LEFT_AT_0 = {
    "backup-failed",
    "backup-late",
    "bookie-accused",
    "bookie-returns",
    "bookie-trouble",
    "certificate-ends",
    "clock-doubted",
    "collection-waits",
    "connections-short",
    "cursor-holds-retention",
    "degraded",
    "descriptors-short",
    "disk-nearly-full",
    "foreign-node",
    "ledgers-misplaced",
    "leftovers",
    "mirror-behind",
    "mixed-releases",
    "namespace-over-quota",
    "not-asked",
    "open-admission",
    "orphans",
    "query-dead",
    "slow-disk",
    "token-expired",
    "too-few-domains",
    "unknown-ledgers",
    "unverified",
    "waiting-bytes",
}
"""Warnings: the cluster serves, and nothing is known to lack. Whoever adds one says so here."""


@pytest.mark.parametrize("name", TABLE)
def test_an_error_is_unhealthy_at_every_door_and_a_warning_is_not(name: str) -> None:
    """`status` finds it in a look; `doctor` and `cluster check` may add it to what a look found."""
    noted = Noted(name, "b1", "", VALUES, "b1")
    looked = Facts(noted=(noted,))
    error = TABLE[name].severity is Severity.ERROR
    for found in (Health(looked, findings(looked)), Health(Facts(), ()).with_noted((noted,))):
        assert found.healthy is not error
        assert healthy(found.findings) is not error
        assert problems_json(found)["healthy"] is status_json(found)["healthy"] is not error
        assert finding_of(looked, noted) in found.findings, "it is told, whatever the exit code"


def test_warnings_are_known_one_by_one() -> None:
    assert {name for name, state in TABLE.items() if state.severity is Severity.WARNING} == LEFT_AT_0


def test_the_page_says_what_the_exit_code_says() -> None:
    said = dict(re.findall(r"^## ([a-z-]+)\n\n\*\*(\w+)\*\*: ", (ROOT / RUNBOOK).read_text(), re.MULTILINE))
    assert said == {name: state.severity.value for name, state in TABLE.items()}
