"""How long an answer takes says nothing of what one may not see. Timed, so only in `make soak`; that the permission is
asked for before anything is looked up, and a ledger's record is read in both cases, is in `test_unseen.py`."""

from __future__ import annotations

import json
import statistics
import time

import pytest
from tests.serve.gateway.test_unseen import Place, payroll  # noqa: F401
from tests.serve.hrana.kit import serving
from tests.serve.http.kit import Raw

from buckram.cluster import Client
from buckram.serve.hrana.database_access import TokenAccess

TRIES, MOST = 1000, 0.05
ROUNDS = 3
"""A busy machine may disturb one of them; what differs by itself differs in each."""

pytestmark = pytest.mark.soak


STATEMENT = json.dumps({"requests": [{"type": "execute", "stmt": {"sql": "SELECT 1"}}]}).encode()
PATHS = {
    "ledger": "GET /v2/ledgers/{ledger}",
    "stream": "GET /v2/namespaces/payroll/streams/{stream}",
    "records": "GET /v2/namespaces/payroll/streams/{stream}/records",
    "object": "GET /v2/namespaces/payroll/objects/{object}",
    "database": "GET /v2/namespaces/payroll/databases/{database}",
    "statement": "POST /v2/databases/payroll/{database}/v3/pipeline",
    "file": "GET /webhdfs/v1/payroll/{object}?op=GETFILESTATUS",
    "file's bytes": "GET /webhdfs/v1/payroll/{object}?op=OPEN",
}


@pytest.mark.parametrize("kind", PATHS)
async def test_what_is_there_takes_as_long_as_what_is_not(payroll: Place, kind: str) -> None:  # noqa: F811
    body = STATEMENT if kind == "statement" else b""
    heads = [PATHS[kind].format_map(names) for names in (payroll.there, payroll.missing)]
    await _compared(kind, payroll.api.raw, heads, body, payroll.eve)


@pytest.mark.parametrize("path", ["v3/pipeline", "v3/cursor", "v1/execute"])
async def test_a_server_of_databases(payroll: Place, client: Client, path: str) -> None:  # noqa: F811
    """One that serves all databases of the namespace, and one that serves none of it."""
    body = json.dumps({"requests": [], "stmt": {"sql": "SELECT 1"}, "batch": {"steps": []}}).encode()
    heads = [f"POST /payroll/{name}/{path}" for name in ("books", "absent")]
    async with (
        TokenAccess(client.services.store, client.services.clocks) as access,
        serving(client, namespaces=["payroll"], access=access) as server,
    ):
        raw = await Raw.to(server.url)
        await _compared(f"Hrana {path}", raw, heads, body, payroll.eve)
        await raw.close()


async def _compared(kind: str, raw: Raw, heads: list[str], body: bytes, who: dict[str, str]) -> None:
    found = [await _medians(raw, heads, body, who)]
    while _difference(*found[-1]) > MOST and len(found) < ROUNDS:
        found.append(await _medians(raw, heads, body, who))
    for there, missing in found:
        print(f"{kind}: {there * 1e6:.0f} us unseen, {missing * 1e6:.0f} us absent, {_difference(there, missing):.1%}")
    assert _difference(*found[-1]) <= MOST, f"{kind}: the medians differ: {found}"


async def _medians(raw: Raw, heads: list[str], body: bytes, who: dict[str, str]) -> tuple[float, float]:
    """Of two requests that are sent in turns."""
    took: list[list[float]] = [[], []]
    for number in range(2 * TRIES):
        which = (number + number // 2) % 2  # one first, then the other
        began = time.perf_counter()
        answer = await raw.ask(heads[which], body, **who)
        took[which].append(time.perf_counter() - began)
        assert answer.status == 404
    there, missing = map(statistics.median, took)
    return there, missing


def _difference(there: float, missing: float) -> float:
    """As a part of the smaller one."""
    return abs(there - missing) / min(there, missing)
