"""Files that go in or out at once are counted."""

from __future__ import annotations

import pytest

from buckram.serve.webhdfs.problems import RemoteProblem
from buckram.serve.webhdfs.transfer_limit import TransferLimit


def test_transfers_are_counted_once() -> None:
    transfers = TransferLimit(1)
    end = transfers.begin("")
    with pytest.raises(RemoteProblem, match="1 files are read or written"):
        transfers.begin("")
    end()
    end()
    with transfers.one(""):
        assert transfers.now == 1
    assert transfers.now == 0
