"""A real cluster under faults, and whether it kept its promises: `python -m buckram.chaos --minutes N --seed S`.

Progress goes to standard error; the last line on standard output is the verdict as JSON, which is also in
FOLDER/verdict.json beside the histories and logs. Exit code 0 only if every rule held.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.cluster import running
from chaos.history import Event, read_history
from chaos.network import Network, network
from chaos.plan import MOST_OF_IT, Plan, make_plan
from chaos.processes import ProcessFailed
from chaos.run import NotHealed, Run, folder_of, forget_data
from chaos.verdict.judge import End, judge
from chaos.verdict.report import LOSSES, RULES, Report

SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m buckram.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="about how long it takes (default 5)")
    parser.add_argument("--seed", type=int, help="chooses the faults (default: a new one, which is printed)")
    parser.add_argument("--metadata", choices=("sqlite", "zookeeper", "etcd"), default="sqlite")
    for kind in ("zookeeper", "etcd"):
        parser.add_argument(f"--{kind}", dest="metadata", action="store_const", const=kind, help=f"--metadata {kind}")
    parser.add_argument("--folder", type=Path, help="where histories, logs and data go (default: a temporary one)")
    parser.add_argument("--one-machine", action="store_true", help="relays on loopback, no network namespaces")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes}: needs more than 0")
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    parent = options.folder or Path(tempfile.mkdtemp(prefix="buckram-chaos-"))
    with network(not options.one_machine) as net:
        plan = make_plan(seed, options.metadata, options.minutes)
        verdict = _play(plan, net, folder_of(parent, plan), options)
    sys.stdout.write(json.dumps(verdict) + "\n")
    return 1 if verdict["violations"] else 0


def _play(plan: Plan, net: Network, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    report, began, end = Report(), time.monotonic(), None
    sys.stderr.write(f"seed {plan.seed}, {plan.metadata}, network: {net.machines.kind}; files in {folder}\n")
    with running(plan, net, folder) as cluster:
        run = Run(cluster, plan, options.minutes * 60 * MOST_OF_IT)
        try:
            run.play()
            end = run.end()
            report.check("healed", True, "")
        except NotHealed as error:
            report.check("healed", False, str(error))
        except ProcessFailed as error:
            report.check("ends", False, str(error))
    events = read_history(folder / "history")
    if end is not None:
        judge(events, end, report)
    verdict = _verdict(plan, net, folder, report, events, end)
    if end is not None:
        verdict |= {"copies": end.first.good, "lacked_at_the_end": end.first.missing}
        verdict |= {"whole_after_s": round(end.seconds, 1)}
    verdict |= {"faults": sum(run.counts.values()), "faults_by_kind": run.counts}
    verdict |= {"healed_s": [round(one, 1) for one in run.healed_s], "rounds": len(run.healed_s)}
    verdict |= {"seconds": round(time.monotonic() - began, 1), "replay": _replay(plan, options)}
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=1))
    _show(report, verdict, folder)
    if not report.violations:
        forget_data(folder)
    return verdict


def _verdict(
    plan: Plan, net: Network, folder: Path, report: Report, events: Sequence[Event], end: End | None
) -> dict[str, Any]:
    acked = sum(event["last"] - event["first"] + 1 for event in events if event["event"] == "acked")
    records = sum(event["count"] for event in events if event["event"] == "appended")
    transactions = sum(event["outcome"] == "ok" for event in events if event["event"] == "transaction-ended")
    return {
        "seed": plan.seed,
        "metadata": plan.metadata,
        "planned_rounds": len(plan.rounds),
        "network": net.machines.kind,
        "acked": acked + records + transactions,
        # A run that did not come to its end was not judged: nobody knows.
        "lost": None if end is None else sum(rule in LOSSES for rule, _ in report.violations),
        "healed": end is not None and all(rule != "healed" for rule, _ in report.violations),
        "acked_entries": acked,
        "acked_records": records,
        "acked_transactions": transactions,
        "checks": dict(report.checks),
        "violations": len(report.violations),
        "violated": [{"rule": rule, "text": text} for rule, text in report.violations],
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
