"""The long checks in full. `python scripts/soak.py [--minutes M] [CHECK...]`; what held for this commit runs no more.

Each check has a state file in .soak/ and its output beside it. `lives` stands for the checks of simulated lives, two
thousand of each subject. After M minutes no further check begins, and simulated lives stop; the next start continues
them. The last line is JSON; exit code 0 only if all held.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(".soak")
UNFINISHED, RATE = 3, " lives, "
"""Exit code of simulated lives while some are left, and words in their line of progress."""
ROUNDS = {
    "kill_rounds": STATE / "rounds.json",
    "interop_rounds": STATE / "interop-rounds.json",
    "stream_rounds": STATE / "stream-rounds.json",
    "spark_rounds": STATE / "spark-rounds.json",
}
"""Checks that remember each round; forgotten when the code is another."""
PYTHON = sys.executable
PYTEST = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
SIM = [PYTHON, "-m", "buckram.sim"]
LIVES = ["--seeds", "0:2000", "--resume", str(STATE / "lives.jsonl")]
"""The file knows what code its lives ran on."""
CHECKS: dict[str, list[str]] = {
    "simulated_lives": [*SIM, *LIVES],
    "mutants": [*SIM, "--mutants"],
    "stream_lives": [*SIM, "--streams", *LIVES],
    "stream_mutants": [*SIM, "--streams", "--mutants"],
    "stream_crash_points": [*SIM, "--streams", "--crash-points"],
    "machine_lives": [*SIM, "--machine", *LIVES],
    "machine_mutants": [*SIM, "--machine", "--mutants"],
    "database_lives": [*SIM, "--database", *LIVES],
    "database_mutants": [*SIM, "--database", "--mutants"],
    "healing_lives": [*SIM, "--healing", *LIVES],
    "healing_mutants": [*SIM, "--healing", "--mutants"],
    "objects_lives": [*SIM, "--objects", *LIVES],
    "objects_mutants": [*SIM, "--objects", "--mutants"],
    "replication_lives": [*SIM, "--replication", *LIVES],
    "replication_mutants": [*SIM, "--replication", "--mutants"],
    "pipeline_lives": [*SIM, "--pipeline", *LIVES],
    "pipeline_mutants": [*SIM, "--pipeline", "--mutants"],
    "administration_lives": [*SIM, "--administration", *LIVES],
    "administration_mutants": [*SIM, "--administration", "--mutants"],
    "archives_lives": [*SIM, "--archives", *LIVES],
    "archives_mutants": [*SIM, "--archives", "--mutants"],
    "gateways_lives": [*SIM, "--gateways", *LIVES],
    "gateways_mutants": [*SIM, "--gateways", "--mutants"],
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
    "kills": [*PYTEST, "tests/kills"],
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


GROUPS = {"lives": [name for name, command in CHECKS.items() if LIVES[-1] in command]}
"""Names that stand for several checks."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/soak.py", description=__doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="default: all")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing later, and stop simulated lives")
    options = parser.parse_args()
    chosen = [name for given in options.checks or CHECKS for name in GROUPS.get(given, [given])]
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        print(f"no check {unknown[0]!r}; known: {', '.join([*GROUPS, *CHECKS])}", file=sys.stderr)
        return 2
    STATE.mkdir(exist_ok=True)
    version = _version()
    deadline = math.inf if options.minutes is None else time.monotonic() + options.minutes * 60
    results = {name: _check(name, version, deadline) for name in chosen}
    print(json.dumps({"checks": results}), flush=True)
    return 0 if all(result["ok"] for result in results.values()) else 1


def command_of(name: str, left_s: float) -> list[str]:
    """Return the command of a check for which so many seconds are left."""
    limited = name in GROUPS["lives"] and left_s < math.inf
    return [*CHECKS[name], "--minutes", f"{left_s / 60:.2f}"] if limited else CHECKS[name]


def _version() -> str:
    """Return the commit and a mark of changes, because results of other code are not reused."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changes = subprocess.run(["git", "diff", "HEAD"], capture_output=True, check=False).stdout
    return head + (hashlib.sha256(changes).hexdigest()[:12] if changes else "")


def _check(name: str, version: str, deadline: float) -> dict[str, object]:
    state, output = STATE / f"{name}.json", STATE / f"{name}.log"
    known = json.loads(state.read_text()) if state.exists() else {}
    if known.get("version") == version and known.get("ok"):
        print(f"{name}: held before, {known['seconds']} s", file=sys.stderr, flush=True)
        return {"ok": True, "seconds": known["seconds"]}
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        print(f"{name}: not begun, the time is over", file=sys.stderr, flush=True)
        return {"ok": False, "seconds": 0, "begun": False}
    command = command_of(name, left_s)
    if name in ROUNDS and known.get("version") != version:
        ROUNDS[name].unlink(missing_ok=True)
    # Before it runs, so that rounds done for this version are kept when it is interrupted.
    state.write_text(json.dumps({"version": version, "ok": False, "seconds": 0}))
    print(f"{name}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    began = time.monotonic()
    with output.open("wb") as log:
        environment = {**os.environ, "BUCKRAM_SOAK": "1"}
        code = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode
    result: dict[str, object] = {"ok": code == 0, "seconds": round(time.monotonic() - began, 1)}
    state.write_text(json.dumps({"version": version, **result}))
    lines = output.read_text(errors="replace").splitlines()
    if code == UNFINISHED and name in GROUPS["lives"]:
        print(f"{name}: UNFINISHED, the next start continues it", file=sys.stderr, flush=True)
    elif code != 0:
        text = "\n  ".join(lines[-15:])
        print(f"{name}: FAILED with {code}; {output} ends with\n  {text}", file=sys.stderr, flush=True)
    if name in GROUPS["lives"]:
        told = [line for line in lines if RATE in line]
        print(f"{name}: {told[-1] if told else 'no life'}", file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
