"""What holds for every test of objects."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles that all write take the index from each other after a tenth of the time."""
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)
