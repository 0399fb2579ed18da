"""How long an answer takes says nothing of what one may not see. Timed, so only in `make soak`; that the permission is
asked for before anything is looked up, and a ledger's record is read in both cases, is in `test_unseen.py`."""

from __future__ import annotations

import statistics
import time

import pytest
from tests.gateway.test_unseen import Place, payroll  # noqa: F401

TRIES, MOST = 1000, 0.05
ROUNDS = 3
"""A busy machine may disturb one of them; what differs by itself differs in each."""

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("kind", ["ledger", "stream", "object", "database", "file"])
async def test_what_is_there_takes_as_long_as_what_is_not(payroll: Place, kind: str) -> None:  # noqa: F811
    path = {
        "ledger": "/v2/ledgers/{ledger}",
        "stream": "/v2/namespaces/payroll/streams/{stream}",
        "object": "/v2/namespaces/payroll/objects/{object}",
        "database": "/v2/namespaces/payroll/databases/{database}",
        "file": "/webhdfs/v1/payroll/{object}?op=GETFILESTATUS",
    }[kind]
    heads = ["GET " + path.format_map(names) for names in (payroll.there, payroll.missing)]
    differ = [await _difference(payroll, heads)]
    while differ[-1] > MOST and len(differ) < ROUNDS:
        differ.append(await _difference(payroll, heads))
    assert differ[-1] <= MOST, f"{kind}: the medians differ by {differ}"


async def _difference(place: Place, heads: list[str]) -> float:
    """Between the medians of two requests that are sent in turns, as a part of the smaller one."""
    took: list[list[float]] = [[], []]
    for number in range(2 * TRIES):
        which = (number + number // 2) % 2  # one first, then the other
        began = time.perf_counter()
        answer = await place.api.raw.ask(heads[which], **place.eve)
        took[which].append(time.perf_counter() - began)
        assert answer.status == 404
    there, missing = map(statistics.median, took)
    return abs(there - missing) / min(there, missing)
