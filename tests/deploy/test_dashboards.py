"""Dashboards and alert rules name only metrics that a real bookie has; a real Prometheus answers each query."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.generate_dashboards import DASHBOARDS, FOLDER, text
from tests.support.http_kit import ask
from tests.support.polling import wait_until

from buckram.processes import BookieProcess
from buckram.zookeeper_server.server import free_port

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
NAME = re.compile(r"\bbuckram_\w+")
RULE = re.compile(r"- alert: (\w+)\n +expr: '(.+)'\n(?:.+\n)*? +runbook: (\S+)")


def rules() -> list[tuple[str, str, str]]:
    """Alert, expression and page of each rule."""
    return RULE.findall(RULES.read_text())


def queries() -> list[str]:
    """All expressions, as Grafana would send them."""
    found = [expression for _, expression, _ in rules()]
    for path in FOLDER.glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            found += [target["expr"] for target in panel["targets"]]
    return [one.replace("$__rate_interval", "1m").replace("$instance", ".*") for one in found]


@pytest.fixture(scope="module")
def bookie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("deploy")
    child = BookieProcess(f"sqlite://{root / 'metadata.db'}", root / "b", options=("--http", "127.0.0.1:0"))
    child.start()
    try:
        yield child.wait_ready().http or ""
    finally:
        child.stop()


def test_the_files_are_what_the_script_writes() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DASHBOARDS)
    for name in DASHBOARDS:
        assert (FOLDER / f"{name}.json").read_text() == text(name), "run scripts/generate_dashboards.py"


def test_each_alert_has_a_page() -> None:
    found = rules()
    assert len(found) == RULES.read_text().count("- alert:") >= 10
    for alert, _, page in found:
        assert (ROOT / page).read_text().startswith(f"# {alert}\n")


def test_every_metric_is_exposed_by_a_bookie(bookie: str) -> None:
    exposed = set(NAME.findall(ask(bookie, "GET", "/metrics").text))
    named = {name for query in queries() for name in NAME.findall(query)}
    assert len(named) > 20
    assert named - exposed == set()


def test_prometheus_accepts_rules_and_answers_queries(bookie: str, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("NO PROMETHEUS HERE: apt-get install prometheus")
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(RULES, tmp_path / "alerts.yml")
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\nrule_files: [alerts.yml]\n"
        f"scrape_configs: [{{job_name: buckram, static_configs: [{{targets: ['{bookie}']}}]}}]\n"
    )
    where = f"127.0.0.1:{free_port('127.0.0.1')}"
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([*command, f"--web.listen-address={where}"], stdout=log, stderr=log)
    try:
        wait_until(lambda: bool(_answer(where, "buckram_bookie_state")), "Prometheus has read no metrics")
        for query in queries():
            _answer(where, query)
        assert _answer(where, "sum(buckram_bookie_state)")
    finally:
        server.terminate()
        server.wait(30)


def _answer(where: str, query: str) -> list[object]:
    try:
        said = ask(where, "GET", f"/api/v1/query?query={urllib.parse.quote(query)}")
    except OSError:  # it does not listen yet
        return []
    if said.status == 503:
        return []
    found = said.json
    assert found["status"] == "success", (query, found)
    result = found["data"]["result"]
    assert isinstance(result, list)
    return result
