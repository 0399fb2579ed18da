"""Some seconds of the bank over HTTP; `make soak` runs ten minutes (`python -m tests.chaos.http_bank`)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.share import share_of_this_run
from tests.chaos.http_customers import Customer, History, Refused

ROOT = Path(__file__).parents[2]


@pytest.mark.share(3, "real processes")
@pytest.mark.slow
def test_a_database_over_http_keeps_its_promises_while_servers_are_killed_and_stopped() -> None:
    seed = share_of_this_run() or 0
    command = [sys.executable, "-m", "tests.chaos.http_bank", "--seconds", "3", "--seed", str(seed), "--servers", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["violations"] == 0
    assert verdict["faults"]
    assert verdict["committed"] > 0
    assert {rule for rule, count in verdict["checks"].items() if count} >= {"D3", "D5", "D6", "D7", "bank", "fresh"}


async def test_what_was_not_sent_was_not_done_and_what_was_not_answered_is_unknown() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    customer = Customer("c", 0, [url], History(), 5.0)
    with pytest.raises(Refused, match="NO_ANSWER") as unknown:
        await customer.ask(f"{url}/", "v1/execute", {}, 5.0)
    server.close()
    await server.wait_closed()
    with pytest.raises(Refused, match="UNREACHED") as undone:
        await customer.ask(f"{url}/", "v1/execute", {}, 5.0)
    assert (unknown.value.undone, undone.value.undone) == (False, True)
    assert [Refused(code).undone for code in ("SQLITE_BUSY", "COMMIT_UNKNOWN", "OUTCOME_UNKNOWN")] == [
        True,
        False,
        False,
    ]
