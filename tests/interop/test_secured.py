"""Apache's client and shell in a cluster of `buckram up --secure --zookeeper`, by the page's commands as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from javakit.programs import LOGGING, NEWEST, OPENS
from tests.e2e.conftest import Up
from tests.interop.apache import JVM, JavaFailed, class_path, running
from tests.interop.clusters import PASSWORD
from tests.interop.words import check
from tests.support.page_kit import Snippet, snippets_of

from buckram import connect
from buckram.cli.security.apache_client import OPTIONS, SETTINGS
from buckram.config import ClientConfig, TlsConfig

pytestmark = pytest.mark.share(3, "doors")

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "interop.md"
SHELL = """#!/bin/sh
# As Apache's script starts it.
shift
exec java {options} -cp {classes} $BOOKIE_EXTRA_OPTS org.apache.bookkeeper.bookie.BookieShell -conf $BOOKIE_CONF "$@"
"""
TALK = ("bookie.BookieShell", "tools")


def printed(word: str) -> Snippet:
    (found,) = [one for one in snippets_of(PAGE) if "as printed" in one.not_run and word in one.code]
    return found


@pytest.fixture(scope="module")
def up(have_java: None, workdir: Path) -> Iterator[Up]:
    folder = workdir / "secured-up"
    folder.mkdir()
    cluster = Up(folder / "buckram-data", "--zookeeper", "--bookies", 1, "--secure")
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def environment(up: Up, workdir: Path) -> dict[str, str]:
    """Of a shell that has `buckram` and Apache's `bookkeeper`."""
    bin = workdir / "secured-bin"
    bin.mkdir()
    talk = [f"-Dorg.slf4j.simpleLogger.log.org.apache.bookkeeper.{one}=info" for one in TALK]
    options = [*JVM, *OPENS, *LOGGING, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *talk]
    script = bin / "bookkeeper"
    script.write_text(SHELL.format(options=" ".join(options), classes=class_path(NEWEST)))
    script.chmod(0o755)
    path = os.pathsep.join([str(bin), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def run(code: str, up: Up, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", code], cwd=up.directory.parent, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stdout[-2000:]}{done.stderr[-5000:]}"
    return done.stdout + done.stderr


def lines_of(up: Up, name: str) -> list[str]:
    return (up.directory / "security" / "apache" / "pulsar" / name).read_text().splitlines()


async def test_the_page_lets_apaches_client_and_shell_in_and_takes_it_back(
    up: Up, environment: dict[str, str], workdir: Path
) -> None:
    said = run(printed("issue").code, up, environment)
    assert "BookieID:bookie-1" in said
    options, settings = lines_of(up, "jvm.options"), dict(one.split("=", 1) for one in lines_of(up, "client.conf"))
    page = PAGE.read_text()
    assert "\n".join(OPTIONS).format(folder="FOLDER", ca="CA") in page
    assert "\n".join(f"{key}={value}" for key, value in SETTINGS.items()).format(
        uri="URI", folder="FOLDER", ca="CA"
    ) in page  # fmt: skip
    assert len(options) == len(OPTIONS)
    uri = settings["metadataServiceUri"]
    quick = {**settings, "addEntryTimeoutSec": "3", "zkTimeout": "3000"}
    with running(NEWEST, workdir / "secured-java.log", options) as java:
        known: dict[str, Any] = {}
        for wire in ("v2", "v3"):
            known = {"uri": uri, "wire": wire, "client": wire, "settings": quick}
            made = java.call("Handles.create", **known, e=1, qw=1, qa=1)
            java.call("Handles.add", **known, writer=made["writer"], count=20)
            java.call("Handles.closeWriter", **known, writer=made["writer"])
            java.call("Handles.read", **known, ledger=made["ledger"], first=0, last=19)
            await _check_read(up, int(made["ledger"]))
            java.call("Handles.delete", **known, ledger=made["ledger"])
            assert made["ledger"] not in java.call("Handles.list", **known)
        open_one = java.call("Handles.create", **known, e=1, qw=1, qa=1)
        java.call("Handles.add", **known, writer=open_one["writer"], count=1)
        said = run(printed("withdraw").code, up, environment)
        assert "withdrawn: pulsar" in said
        refused = [
            java.start("Handles.add", **known, writer=open_one["writer"], count=1),
            java.start("Handles.create", **known, e=1, qw=1, qa=1),
            # What an open session of ZooKeeper was told by the server that went is no right to go on.
            java.start("Handles.delete", **known, ledger=open_one["ledger"]),
        ]
        for one in refused:  # together, because each waits for seconds
            assert isinstance(one.exception(60), JavaFailed)


async def _check_read(up: Up, ledger: int) -> None:
    """Our client reads it through the bookies, with the token that `up` printed."""
    client = up.ready["client"]
    tls, config = TlsConfig("required", ca=client["ca"]), ClientConfig(local_read_bytes=0)
    async with (
        connect(up.ready["service"], tls=tls, token=client["token"], config=config) as connected,
        connected.open(ledger, password=PASSWORD) as reader,
    ):
        await check(reader, 0, 19)
