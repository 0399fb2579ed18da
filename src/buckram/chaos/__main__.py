"""A real cluster under faults, and whether it kept its promises: `python -m buckram.chaos --minutes N --seed S`.

Progress goes to standard error; the last line on standard output is the verdict as JSON, which is also in
FOLDER/verdict.json beside the histories and logs. Exit code 0 only if every rule held.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from buckram.chaos.cluster import Cluster, running
from buckram.chaos.history import read_history
from buckram.chaos.network import Network, network
from buckram.chaos.plan import Plan, make_plan
from buckram.chaos.processes import ProcessFailed
from buckram.chaos.run import NotHealed, Run, folder_of
from buckram.chaos.verdict.ledgers import judge_ledgers
from buckram.chaos.verdict.report import RULES, Report
from buckram.chaos.verdict.state import State, lacking, read_state
from buckram.chaos.verdict.streams import judge_streams
from buckram.client.client import connect
from buckram.errors import BuckramError

SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m buckram.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="about how long it takes (default 5)")
    parser.add_argument("--seed", type=int, help="chooses the faults (default: a new one, which is printed)")
    parser.add_argument("--metadata", choices=("sqlite", "zookeeper", "etcd"), default="sqlite")
    parser.add_argument("--folder", type=Path, help="where histories, logs and data go (default: a temporary one)")
    parser.add_argument("--one-machine", action="store_true", help="no network namespaces, no faults of the network")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes}: needs more than 0")
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    parent = options.folder or Path(tempfile.mkdtemp(prefix="buckram-chaos-"))
    with network(not options.one_machine) as net:
        plan = make_plan(seed, options.metadata, options.minutes, apart=net.wire is not None)
        verdict = _play(plan, net, folder_of(parent, plan), options)
    sys.stdout.write(json.dumps(verdict) + "\n")
    return 1 if verdict["violations"] else 0


def _play(plan: Plan, net: Network, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    report, began, counts, healed = Report(), time.monotonic(), dict[str, int](), list[float]()
    apart = "in network namespaces" if net.wire is not None else f"on one machine ({net.why_not})"
    sys.stderr.write(f"seed {plan.seed}, {plan.metadata}, {apart}; files in {folder}\n")
    with running(plan, net, folder) as cluster:
        run = Run(cluster, plan)
        try:
            run.play()
            report.check("healed", True, "")
            _judge(cluster, folder, report)
        except NotHealed as error:
            report.check("healed", False, str(error))
        except ProcessFailed as error:
            report.check("ends", False, str(error))
        counts, healed = run.counts, run.healed_s
    verdict = _verdict(plan, net, folder, report)
    verdict |= {"faults": counts, "healed_s": [round(one, 1) for one in healed]}
    verdict |= {"seconds": round(time.monotonic() - began, 1), "replay": _replay(plan, options)}
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=1))
    _show(report, verdict, folder)
    return verdict


def _judge(cluster: Cluster, folder: Path, report: Report) -> None:
    """Read everything and compare it with the histories."""

    async def final() -> State:
        async with connect(cluster.uri) as client:
            state = await read_state(client)
            found, naming = await lacking(client, cluster.lost)
            report.check("M7", not naming, f"ledgers {naming[:10]} name one of {cluster.lost}")
            report.check("healed", not found.queue, f"{len(found.queue)} ledgers lack copies at the end")
            return state

    try:
        state = asyncio.run(final())
    except BuckramError as error:
        report.check("S3", False, f"not everything can be read at the end: {type(error).__name__}: {error}")
        return
    events = read_history(folder / "history")
    judge_ledgers(events, state, report)
    judge_streams(events, state, report)
    for text in state.copies or [""]:
        report.check("S5", not text, text)
    report.checks["S5"] += state.checked
    report.incomplete = state.incomplete
    for event in events:
        if event["event"] == "would-not-end":
            report.check("ends", False, f"{event['who']} had to be killed")
    report.check("ends", True, "")


def _verdict(plan: Plan, net: Network, folder: Path, report: Report) -> dict[str, Any]:
    events = read_history(folder / "history")
    acked = sum(event["last"] - event["first"] + 1 for event in events if event["event"] == "acked")
    records = sum(event["count"] for event in events if event["event"] == "appended")
    return {
        "seed": plan.seed,
        "metadata": plan.metadata,
        "rounds": len(plan.rounds),
        "network": "namespaces" if net.wire is not None else "one machine",
        "acked_entries": acked,
        "acked_records": records,
        "checks": dict(report.checks),
        "entries_with_fewer_copies": report.incomplete,
        "violations": [{"rule": rule, "text": text} for rule, text in report.violations],
        "folder": str(folder),
    }


def _replay(plan: Plan, options: argparse.Namespace) -> str:
    where = " --one-machine" if options.one_machine else ""
    return f"python -m buckram.chaos --minutes {options.minutes:g} --seed {plan.seed} --metadata {plan.metadata}{where}"


def _show(report: Report, verdict: dict[str, Any], folder: Path) -> None:
    for rule, text in report.violations[:SHOWN]:
        sys.stderr.write(f"VIOLATION {rule} ({RULES[rule]}): {text}\n")
    if report.violations:
        sys.stderr.write(f"look at {folder}/history and {folder}/logs; repeat it with: {verdict['replay']}\n")


if __name__ == "__main__":
    raise SystemExit(main())
