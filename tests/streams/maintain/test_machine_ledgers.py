"""Which intents of a machine's ledgers a janitor discards."""

from __future__ import annotations

import pytest

from buckram.core.streams.metadata.head import Head, SnapshotRow
from buckram.streams.maintain.janitor import JanitorSettings, _is_suspect, _may_discard
from buckram.streams.shared.ledgers import OBJECT, SNAPSHOT, Intent

HEAD = Head("uid", 0, epoch=5, snapshots=(SnapshotRow(10, 77, 3, 100, "ab", 0),))
LATE = 10**18


@pytest.mark.parametrize(
    ("purpose", "ledger", "epoch", "discarded", "suspect"),
    [
        (SNAPSHOT, 77, 4, False, False),  # published
        (SNAPSHOT, 78, 4, True, False),  # of a leader that is gone
        (SNAPSHOT, 78, 5, False, True),  # may be under way, unless nobody has the lease
        (SNAPSHOT, 77, 5, False, False),
        (OBJECT, 79, 4, False, False),  # the objects' index decides
        (OBJECT, 79, 5, False, False),
    ],
)
def test_only_what_no_leader_can_publish_is_discarded(
    purpose: str, ledger: int, epoch: int, discarded: bool, suspect: bool
) -> None:
    intent = Intent(ledger, epoch, purpose, 0, False, 0)
    assert _may_discard(intent, HEAD, {purpose: 0}, LATE, JanitorSettings()) is discarded
    assert _is_suspect(intent, HEAD) is suspect
