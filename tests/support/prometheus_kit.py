"""Runs a real Prometheus on targets of a test, and asks it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_kit import ask
from tests.support.polling import wait_until

from buckram.launch.child_process import free_port

ROOT = Path(__file__).parents[2]
RULES = tuple(ROOT / "deploy" / "prometheus" / name for name in ("alerts.yml", "health.yml"))
HURRIED = ((r"for: \d+[smh]", "for: 0s"), (r"\[\d+m\]", "[20s]"), ("> 100000", "> 0"))
"""A test cannot wait for minutes or for 100,000 records: no rule waits, and rates are of some seconds."""


def program(name: str) -> str:
    """The path of prometheus or promtool. Skips the test, loudly, where there is none."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"NO {name.upper()} HERE: `make setup-all` fetches it")
    return found


class Prometheus:
    """A server that runs."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, text: str) -> list[Any]:
        """The samples of an instant query; empty while the server does not answer yet. AssertionError if refused."""
        try:
            said = ask(self.address, "GET", f"/api/v1/query?query={urllib.parse.quote(text)}")
        except OSError:
            return []
        if said.status == 503:
            return []
        assert said.json["status"] == "success", (text, said.json)
        result = said.json["data"]["result"]
        assert isinstance(result, list)
        return result

    def firing(self) -> dict[str, list[Mapping[str, str]]]:
        """The labels of alerts that fire, by name."""
        found: dict[str, list[Mapping[str, str]]] = {}
        for one in ask(self.address, "GET", "/api/v1/alerts").json["data"]["alerts"]:
            if one["state"] == "firing":
                found.setdefault(one["labels"]["alertname"], []).append(one["labels"])
        return found


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, list[str]]) -> Iterator[Prometheus]:
    """`targets`: addresses by job. Rules are those of deploy/, hurried; scrapes and evaluations come each second."""
    command = program("prometheus")
    for path in RULES:
        rules = path.read_text()
        for pattern, instead in HURRIED:
            rules, count = re.subn(pattern, instead, rules)
            assert count or path is not RULES[0], f"no rule has {pattern} any more"
        (folder / path.name).write_text(rules)
    jobs = [{"job_name": job, "static_configs": [{"targets": list(them)}]} for job, them in targets.items()]
    often = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    settings = {"global": often, "rule_files": [path.name for path in RULES], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                command,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        found = Prometheus(address)
        wait_until(
            lambda: bool(found.query("up")), f"Prometheus does not scrape: {(folder / 'log').read_text()[-500:]}"
        )
        yield found
    finally:
        server.terminate()
        server.wait(30)
