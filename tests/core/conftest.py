"""Tests of what has a compiled twin run with both."""

from __future__ import annotations

import pytest

from buckram.core.entries import entry, hot
from buckram.core.entries import python_twins as scan
from buckram.core.entries import python_twins as seal
from buckram.core.entries import python_twins as verify
from buckram.core.wire import adds


@pytest.fixture(params=["compiled", "python"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two forms the test runs with; use it where digests or adds are tested."""
    if request.param == "compiled" and not hot.COMPILED:
        pytest.skip("the compiled twins were not built here")
    if request.param == "python":
        monkeypatch.setattr(entry, "verify_entries", verify.verify_entries)
        monkeypatch.setattr(adds, "seal_adds", seal.seal_adds)
        monkeypatch.setattr(adds, "scan_add_frames", scan.scan_add_frames)
    return str(request.param)
