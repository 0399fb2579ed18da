"""The long checks in full. `python scripts/soak.py [CHECK...]`; what passed for this commit is not run again.

Each check has a state file in .soak/ and its output beside it. The last line is JSON; exit code 0 only if all held.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(".soak")
ROUNDS = {
    "kill_rounds": STATE / "rounds.json",
    "interop_rounds": STATE / "interop-rounds.json",
    "stream_rounds": STATE / "stream-rounds.json",
    "spark_rounds": STATE / "spark-rounds.json",
}
"""Checks that remember each round; forgotten when the code is another."""
PYTHON = sys.executable
PYTEST = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
CHECKS: dict[str, list[str]] = {
    "simulated_lives": [PYTHON, "-m", "buckram.sim", "--seeds", "0:2000"],
    "mutants": [PYTHON, "-m", "buckram.sim", "--mutants"],
    "stream_lives": [PYTHON, "-m", "buckram.sim", "--streams", "--seeds", "0:2000"],
    "stream_mutants": [PYTHON, "-m", "buckram.sim", "--streams", "--mutants"],
    "stream_crash_points": [PYTHON, "-m", "buckram.sim", "--streams", "--crash-points"],
    "machine_lives": [PYTHON, "-m", "buckram.sim", "--machine", "--seeds", "0:2000"],
    "machine_mutants": [PYTHON, "-m", "buckram.sim", "--machine", "--mutants"],
    "database_lives": [PYTHON, "-m", "buckram.sim", "--database", "--seeds", "0:1000"],
    "database_mutants": [PYTHON, "-m", "buckram.sim", "--database", "--mutants"],
    "healing_lives": [PYTHON, "-m", "buckram.sim", "--healing", "--seeds", "0:2000"],
    "administration_lives": [PYTHON, "-m", "buckram.sim", "--administration", "--seeds", "0:1000"],
    "administration_mutants": [PYTHON, "-m", "buckram.sim", "--administration", "--mutants"],
    "healing_mutants": [PYTHON, "-m", "buckram.sim", "--healing", "--mutants"],
    "kills_direct": [PYTHON, "-m", "tests.chaos.kills", "--kills", "1000", "--disk", "direct"],
    "kills_buffered": [PYTHON, "-m", "tests.chaos.kills", "--kills", "1000", "--disk", "buffered"],
    "chaos_sqlite": [PYTHON, "-m", "buckram.chaos", "--minutes", "30", "--metadata", "sqlite"],
    "chaos_zookeeper": [PYTHON, "-m", "buckram.chaos", "--minutes", "30", "--metadata", "zookeeper"],
    "chaos_etcd": [PYTHON, "-m", "buckram.chaos", "--minutes", "30", "--metadata", "etcd"],
    "http_bank": [PYTHON, "-m", "tests.chaos.http_bank", "--seconds", "600"],
    "churn": [PYTHON, "-m", "tests.chaos.churn", "--seconds", "3600"],
    "drop": [PYTHON, "-m", "tests.chaos.drop", "--ledgers", "100000"],
    "kill_rounds": [PYTHON, "-m", "tests.chaos.rounds", "--rounds", "100", "--resume", str(ROUNDS["kill_rounds"])],
    "stream_rounds": [
        PYTHON,
        "-m",
        "tests.chaos.stream_rounds",
        "--rounds",
        "100",
        "--resume",
        str(ROUNDS["stream_rounds"]),
    ],
    "interop_rounds": [
        PYTHON,
        "-m",
        "tests.interop.rounds",
        "--rounds",
        "50",
        "--resume",
        str(ROUNDS["interop_rounds"]),
    ],
    "spark_rounds": [
        PYTHON,
        "-m",
        "tests.spark.faults.rounds",
        "--rounds",
        "20",
        "--resume",
        str(ROUNDS["spark_rounds"]),
    ],
    "fuzzing": [*PYTEST, "tests/core", "tests/project"],
    "compiled_with_sanitizers": [PYTHON, "scripts/hot_sanitized.py"],
    "crash_points": [*PYTEST, "tests/crashpoints"],
    "contracts": [*PYTEST, "tests/contracts"],
    "bookies_and_clients": [
        *PYTEST,
        "tests/bookie",
        "tests/client",
        "tests/metadata",
        "tests/cli",
        "tests/sync",
        "tests/package",
        "tests/e2e",
        "tests/security",
        "tests/healing",
        "tests/health",
        "tests/replication",
    ],
    "streams": [*PYTEST, "tests/streams", "tests/docs"],
    "files": ["env", "BUCKRAM_ALL_GLOBS=1", *PYTEST, "tests/files", "tests/serve/webhdfs", "tests/state/objects"],
    "databases": [
        *PYTEST,
        "tests/state",
        "tests/sql",
    ],
    "operations": [
        *PYTEST,
        "tests/bench",
        "tests/clients",
        "tests/deploy",
        "tests/formats",
        "tests/serve",
        "tests/runtime",
    ],
    "lowest_dependencies": [PYTHON, "scripts/lowest.py", str(STATE / "lowest")],
    "install_matrix": [PYTHON, "scripts/install_matrix.py"],
    "sqllogictest": [PYTHON, "-m", "tests.state.db.sqllogic"],
    "sqlalchemy_suite": [PYTHON, "-m", "tests.sql.compliance"],
    "sync_before_ack": [*PYTEST, "tests/chaos"],
    "interop": [*PYTEST, "tests/interop"],
    "spark": [
        *PYTEST,
        "tests/spark",
    ],
    "simulator": [*PYTEST, "tests/simulator", "tests/scenarios", "tests/mutants"],
}


def main() -> int:
    chosen = sys.argv[1:] or list(CHECKS)
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]!r}; known: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    STATE.mkdir(exist_ok=True)
    version = _version()
    results = {name: _check(name, version) for name in chosen}
    print(json.dumps({"checks": results}), flush=True)
    return 0 if all(result["ok"] for result in results.values()) else 1


def _version() -> str:
    """Return the commit and a mark of changes, because results of other code are not reused."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changes = subprocess.run(["git", "diff", "HEAD", "--", "src", "tests"], capture_output=True, check=False).stdout
    return head + (hashlib.sha256(changes).hexdigest()[:12] if changes else "")


def _check(name: str, version: str) -> dict[str, object]:
    state, output = STATE / f"{name}.json", STATE / f"{name}.log"
    known = json.loads(state.read_text()) if state.exists() else {}
    if known.get("version") == version and known.get("ok"):
        print(f"{name}: held before, {known['seconds']} s", file=sys.stderr, flush=True)
        return {"ok": True, "seconds": known["seconds"]}
    if name in ROUNDS and known.get("version") != version:
        ROUNDS[name].unlink(missing_ok=True)
    # Before it runs, so that rounds done for this version are kept when it is interrupted.
    state.write_text(json.dumps({"version": version, "ok": False, "seconds": 0}))
    print(f"{name}: {' '.join(CHECKS[name][1:])}", file=sys.stderr, flush=True)
    began = time.monotonic()
    with output.open("wb") as log:
        environment = {**os.environ, "BUCKRAM_SOAK": "1"}
        code = subprocess.run(CHECKS[name], stdout=log, stderr=log, env=environment, check=False).returncode
    result: dict[str, object] = {"ok": code == 0, "seconds": round(time.monotonic() - began, 1)}
    state.write_text(json.dumps({"version": version, **result}))
    if code != 0:
        tail = output.read_text(errors="replace").splitlines()[-15:]
        print(f"{name}: FAILED with {code}; {output} ends with\n  " + "\n  ".join(tail), file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
