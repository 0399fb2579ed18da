"""The client for Go: its own tests, its tests against real gateways, and its examples. Nothing is fetched."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import buckram, environment
from tests.support.polling import wait_until

from buckram import errors
from buckram.serve.gateway.shared.error_answers import code_of
from buckram.testing import ThreadedCluster

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "go"
OFFLINE = {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", "GOWORK": "off"}


class GatewayProcess:
    """`buckram gateway` of a cluster; `with` ends it as SIGTERM does."""

    def __init__(self, uri: str, *words: object) -> None:
        command = [sys.executable, "-m", "buckram", "gateway", "--metadata", uri, "--json", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(None))
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"buckram gateway ended with {self.process.wait()}"
        self.url: str = json.loads(line)["url"]

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(60)

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGTERM)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def go() -> str:
    found = shutil.which("go")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("NO GO HERE: the client for Go is not tested")
        pytest.skip("NO GO HERE: install Go 1.23 or newer to test the client for Go")
    return found


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        yield cluster.uri


def run(*command: str, **variables: str) -> str:
    known = {**environment(None), **OFFLINE, **variables}
    done = subprocess.run(command, cwd=CLIENT, env=known, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    return done.stdout


def append(url: str, stream: str, *values: str) -> None:
    request = urllib.request.Request(
        f"{url}/v2/namespaces/default/streams/{stream}/records?create=true",
        "\n".join(values).encode(),
        {"Content-Type": "text/plain"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["records"] == len(values)


def test_it_needs_the_standard_library_only() -> None:
    words = [line.split()[0] for line in (CLIENT / "go.mod").read_text().splitlines() if line and line[:2] != "//"]
    assert words == ["module", "go"]


def test_its_codes_are_those_of_gateways() -> None:
    named = set(re.findall(r'Code = "(\w+)"', (CLIENT / "errors.go").read_text()))
    own = {"UNREACHABLE", "BAD_ANSWER", "PRODUCER_IN_DOUBT"}
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.BuckramError)]
    of_errors = {code_of(kind.__new__(kind)) for kind in kinds}
    sources = [*(ROOT / "src/buckram/serve/gateway").rglob("*.py"), *(ROOT / "src/buckram/serve/http").glob("*.py")]
    of_gateway = {code for path in sources for code in re.findall(r'"([A-Z_]{6,})"', path.read_text())}
    assert len(named) > 30
    assert own <= named
    assert named - own - of_errors - of_gateway == set()


def test_pages_name_what_there_is() -> None:
    sources = "\n".join(path.read_text() for path in CLIENT.glob("*.go") if not path.name.endswith("_test.go"))
    declared = set(re.findall(r"^(?:func (?:\(\w+ \*?\w+\) )?|type |\t)([A-Z]\w+)\b", sources, re.MULTILINE))
    assert len(declared) > 80
    readme, page = (CLIENT / "README.md").read_text(), (ROOT / "docs" / "howto" / "go.md").read_text()
    table = readme.partition("## What there is")[2].partition("| variable")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", table)) | set(re.findall(r"\bbuckram\.([A-Z]\w+)", readme + page))
    assert len(named) >= 50
    assert named - declared == set()


def test_it_is_formatted_and_vetted(go: str) -> None:
    beside = Path(go).resolve().parent / "gofmt"
    assert run(str(beside) if beside.exists() else "gofmt", "-l", ".") == ""
    run(go, "vet", "./...")


def test_its_tests_hold_with_two_gateways_that_ask_for_tokens(go: str, uri: str, tmp_path: Path) -> None:
    made = buckram("token", "create", "--subject", "go", "--role", "admin", "--metadata", uri, "--json")
    token = tmp_path / "token"
    token.write_text(made.json["token"])
    with GatewayProcess(uri, "--tokens") as first, GatewayProcess(uri, "--tokens") as second:
        said = run(
            go,
            *("test", "-count=1", "-v", "./..."),
            BUCKRAM_TEST_GATEWAYS=f"{first.url},{second.url}",
            BUCKRAM_TEST_TOKEN_FILE=str(token),
        )
    assert "SKIP" not in said
    assert len(re.findall(r"^--- PASS: TestLive", said, re.MULTILINE)) >= 5


def test_the_example_of_its_readme_runs(go: str, uri: str) -> None:
    with GatewayProcess(uri) as gateway:
        said = run(go, "run", "./examples/orders", BUCKRAM_GATEWAY=gateway.url)
    assert said.splitlines() == [
        "offsets 0 to 1",
        "ship 0 to ann",
        "ship 1 to bob",
        "record 0: ann ordered 5 kg",
        "record 1: bob ordered 2 kg",
    ]
    shown = (CLIENT / "README.md").read_text()
    program = (CLIENT / "examples" / "orders" / "main.go").read_text()
    for block in re.findall(r"```go\n(.*?)```", shown, re.DOTALL):
        for line in filter(None, map(str.strip, block.splitlines())):
            assert line in program, f"README.md has a line that its program has not: {line}"


def test_a_tail_goes_on_when_its_gateway_was_restarted(go: str, uri: str, tmp_path: Path) -> None:
    binary, out = tmp_path / "follow", tmp_path / "out"
    run(go, "build", "-o", str(binary), "./examples/follow")

    def wait_for(count: int) -> None:
        wait_until(lambda: len(out.read_text().splitlines()) >= count, f"{count} records did not come")
        assert out.read_text().splitlines() == [f"{number} {number}" for number in range(count)]

    with GatewayProcess(uri) as writing:
        append(writing.url, "followed", "0", "1", "2")
        first = GatewayProcess(uri)
        port = first.url.rpartition(":")[2]
        known = {**environment(None), "BUCKRAM_GATEWAY": first.url}
        with out.open("wb") as file, (tmp_path / "log").open("wb") as log:
            following = subprocess.Popen([binary, "default", "followed"], stdout=file, stderr=log, env=known)
        try:
            wait_for(3)
            count = 3
            for number in (signal.SIGTERM, signal.SIGKILL):
                with first:
                    first.end(number)
                append(writing.url, "followed", str(count))
                first = GatewayProcess(uri, "--port", port)
                append(writing.url, "followed", str(count + 1))
                count += 2
                wait_for(count)
            following.send_signal(signal.SIGTERM)
            assert following.wait(60) == 0
        finally:
            following.kill()
            with first:
                pass
